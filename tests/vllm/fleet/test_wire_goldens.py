"""Real vLLM publishes the events of tests/contract/vllm_events.json, against which agents and simulator are tested.

PLUMAGE_GOLDENS=write writes the file again. First check what another version of vLLM changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from plumage_bench.vllm.engine import Engine

GOLDENS = Path(__file__).parents[2] / "contract" / "vllm_events.json"


def test_events_equal_goldens(start_engine: Callable[..., Engine], tmp_path: Path) -> None:
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{tmp_path}/events"}
    engine = start_engine(num_gpu_blocks_override=9, max_model_len=256, kv_events_config=events)
    batches: list[str] = []

    def publish(batch: Any) -> None:
        batch.ts, batch.data_parallel_rank = 1.0, 0
        batches.append(msgspec.msgpack.encode(batch).hex())

    engine.scheduler.kv_event_publisher.publish = publish
    ask(engine, "first", 100)
    ask(engine, "other", 100, start=7)
    ask(engine, "salted", 70, cache_salt="tenant")
    ask(engine, "whole", 64)
    ask(engine, "again", 64)  # cached completely: vLLM computes the last block again, beside the cached one
    engine.core.reset_prefix_cache()
    ask(engine, "after", 40)
    if os.environ.get("PLUMAGE_GOLDENS") == "write":
        GOLDENS.write_text(json.dumps({"vllm": "0.32", "batches": batches}, indent=1) + "\n")
    assert batches == json.loads(GOLDENS.read_text())["batches"]


def ask(engine: Engine, name: str, count: int, start: int = 0, **named: Any) -> None:
    """A prompt of this many ids from `start` on, and an answer of one token: no event depends on the model."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [(start + number) % 256 for number in range(count)], **named}
    engine.llm.add_request(name, prompt, SamplingParams(max_tokens=1, temperature=0.0))
    while engine.llm.has_unfinished_requests():
        engine.llm.step()
