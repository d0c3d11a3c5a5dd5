"""The control of every comparison of outputs: a single wrong KV block anywhere changes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from plumage_bench.vllm.engine import Engine, Prompt

BLOCK, BLOCKS, PROMPTS = 32, 14, 20


@pytest.fixture
def engine(start_engine: Callable[..., Engine]) -> Engine:
    return start_engine(block_size=BLOCK)


def prompt(name: str, rng: random.Random) -> Prompt:
    return Prompt(name, tuple(rng.choices(range(256), k=BLOCK * BLOCKS + 5)), 10)


def served(engine: Engine, one: Prompt) -> tuple[tuple[int, ...], list[int]]:
    """Its answer, and the device's blocks of its prompt."""
    held: list[int] = []
    own = engine.scheduler._free_request

    def noted(request: Any, *given: Any, **named: Any) -> Any:
        held.extend(engine.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0][:BLOCKS])
        return own(request, *given, **named)

    engine.scheduler._free_request = noted
    try:
        return engine.serve([one]).answers[one.name].tokens, held
    finally:
        engine.scheduler._free_request = own


def test_wrong_block_changes_answer(engine: Engine) -> None:
    """One of the fourteen blocks of a cached prompt gets the content of another prompt's block at the same place."""
    rng, changed = random.Random(1), 0
    layers = engine.core.model_executor.driver_worker.worker.model_runner.kv_caches
    for number in range(PROMPTS):
        mine, other = prompt(f"mine {number}", rng), prompt(f"other {number}", rng)
        right, blocks = served(engine, mine)
        _, others = served(engine, other)
        place = rng.randrange(BLOCKS)
        kept = [layer[blocks[place]].clone() for layer in layers]
        for layer in layers:
            layer[blocks[place]] = layer[others[place]]
        wrong, read = served(engine, Prompt(f"again {number}", mine.tokens, mine.answer))
        assert read == blocks
        changed += wrong != right
        for layer, content in zip(layers, kept, strict=True):
            layer[blocks[place]] = content
        assert served(engine, Prompt(f"right {number}", mine.tokens, mine.answer)) == (right, blocks)
    assert changed >= 0.95 * PROMPTS


def test_prompts_have_different_answers(engine: Engine) -> None:
    rng = random.Random(2)
    answers = engine.serve([prompt(str(number), rng) for number in range(60)]).answers
    assert len({answer.tokens for answer in answers.values()}) >= 59
