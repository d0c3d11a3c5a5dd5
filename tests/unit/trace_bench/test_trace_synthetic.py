"""The synthetic trace: it repeats by its seed, has the real format, and the shape that it states."""

from __future__ import annotations

import json

from plumage_bench.benches.trace.mooncake import parse
from plumage_bench.benches.trace.synthetic import synthetic_trace


def test_seed_repeats_the_trace_and_another_does_not() -> None:
    assert synthetic_trace(300, 1) == synthetic_trace(300, 1)
    assert synthetic_trace(300, 1) != synthetic_trace(300, 2)


def test_shorter_trace_is_the_beginning_of_a_longer_one() -> None:
    assert synthetic_trace(600, 5)[:200] == synthetic_trace(200, 5)


def test_trace_reads_back_from_its_format() -> None:
    trace = synthetic_trace(400, 3)
    lines = [
        json.dumps(
            {
                "timestamp": round(request.at * 1000),
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.blocks),
            }
        ).encode()
        for request in trace
    ]
    assert parse(lines, "synthetic") == trace


def test_system_prompts_are_shared_and_turns_continue() -> None:
    trace = synthetic_trace(400, 3)
    seen: set[int] = set()
    first_blocks, continued = set(), 0
    for request in trace:
        first_blocks.add(request.blocks[0])
        continued += request.full_blocks[:-1] != () and request.blocks[8:9] != () and request.blocks[8] in seen
        seen.update(request.full_blocks)
    assert len(first_blocks) <= 32
    assert continued > 100  # beyond the longest system prompt, only a conversation's own history can hit
