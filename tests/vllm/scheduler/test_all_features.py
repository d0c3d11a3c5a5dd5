"""All features together, with the bandit, a sorted batch and the host tier: answers are vLLM's, and no request or block
is left."""

from __future__ import annotations

import random
from collections.abc import Callable

from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments
from plumage_bench.vllm.pretend import host_tier_arguments

BLOCK = 32


def prompts(count: int = 60) -> list[Prompt]:
    """Prompts of a few groups that repeat after others have filled the cache."""
    rng = random.Random(11)
    shared = [tuple(rng.choices(range(256), k=5 * BLOCK)) for _ in range(8)]
    made = []
    for number in range(count):
        tokens = shared[(number // 4) % 8] + tuple(rng.choices(range(256), k=rng.randrange(4, 40)))
        made.append(Prompt(f"{number}", tokens, rng.randrange(4, 40), 2 * number))
    return made


def test_all_features_keep_answers(start_engine: Callable[..., Engine]) -> None:
    few = {"num_gpu_blocks_override": 36, "max_model_len": 512, "max_num_seqs": 6}
    expected = start_engine(**few).serve(prompts()).answers
    settings = {"feather": {"policy": "Bandit", "orderBatch": True}, "hostTier": {"minFrequency": 2}, "seed": 3}
    engine = start_engine(**few, **host_tier_arguments(4096), **plugin_arguments(settings))
    plumage = engine.scheduler.plumage
    assert set(plumage.guards) >= {"feather", "batchOrder", "eviction", "batchLimit", "hostTier", "promotion"}
    answers = engine.serve(prompts()).answers
    assert {name: one.tokens for name, one in answers.items()} == {name: one.tokens for name, one in expected.items()}
    assert all(guard.on for guard in plumage.guards.values()), {n: g.reason for n, g in plumage.guards.items()}
    for counted in ("admissions", "evictions", "host_admissions"):
        assert sum(count for name, _, count in plumage.counters.rows() if name == counted), counted
    while engine.scheduler.has_requests():
        engine.core.step()
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1
