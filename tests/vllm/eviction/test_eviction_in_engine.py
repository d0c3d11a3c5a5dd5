"""A real engine with another eviction order and a small cache: its answers are vLLM's, with preemptions and aborts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from support.vllm_blocks import free_list

from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments

BLOCK = 32


def prompts(count: int = 40) -> list[Prompt]:
    rng = random.Random(3)
    shared = [tuple(rng.choices(range(256), k=BLOCK * rng.randrange(3, 9))) for _ in range(5)]
    made = []
    for number in range(count):
        tokens = rng.choice([*shared, ()]) + tuple(rng.choices(range(256), k=rng.randrange(2, 60)))
        abort = rng.randrange(12) if number % 9 == 0 else None
        made.append(Prompt(f"{number}", tokens, rng.randrange(4, 40), rng.randrange(20), abort))
    return made


def answers(engine: Engine, wanted: list[Prompt]) -> Mapping[str, tuple[int, ...]]:
    return {name: answer.tokens for name, answer in engine.serve(wanted).answers.items() if answer.finished}


def test_answers_equal_vllm_and_blocks_are_freed(start_engine: Callable[..., Engine]) -> None:
    few: dict[str, Any] = {"num_gpu_blocks_override": 40, "max_num_seqs": 8}
    expected = answers(start_engine(**few), prompts())
    for policy in ("Rlt", "Hotness"):
        settings = {"feather": None, "batchLimit": "Static", "eviction": {"policy": policy}}
        engine = start_engine(**few, **plugin_arguments(settings))
        given = answers(engine, prompts())
        assert {name: given[name] for name in expected if name in given} == expected, policy
        guard = engine.scheduler.plumage.guards["eviction"]
        assert guard.on, guard.reason
        assert engine.scheduler.plumage.counters.get("evictions", policy) > 0
        assert len(free_list(engine.pool)) == engine.pool.num_gpu_blocks - 1
        assert engine.pool.plumage.tree.in_use == 0
