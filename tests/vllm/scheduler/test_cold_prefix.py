"""Requests arrive together with one prefix that is not cached: only the first computes it (decision 0095)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.offload_tier import chain

from plumage_bench.vllm.engine import plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine

PREFIX = 256  # tokens, eight blocks
OWN = 9  # tokens of each request
SIBLINGS = 4


@pytest.mark.parametrize("policy", ["Bandit", "ChtOrder"])
@pytest.mark.parametrize("budget", [PREFIX - 64, PREFIX + 64, 2 * PREFIX + 64])
def test_cold_prefix_is_scheduled_once(tiny_model: Path, budget: int, policy: str) -> None:
    """A step has room for a part of the prefix, all of it, or twice that."""
    settings = {"feather": {"policy": policy, "orderBatch": False}, "eviction": None, "batchLimit": "Static"}
    engine = PretendEngine(tiny_model, blocks=100, max_num_batched_tokens=budget, **plugin_arguments(settings))
    for number in range(SIBLINGS):
        engine.add(f"sibling {number}", chain(0, PREFIX // 32) + chain(10 + number, 1)[:OWN], 1)
    scheduled = []
    while engine.scheduler.has_requests():
        scheduled.append(engine.step().total_num_scheduled_tokens)
        assert len(scheduled) < 100, scheduled
    assert sum(scheduled) == PREFIX + SIBLINGS * OWN
    assert max(scheduled) <= budget
    assert engine.scheduler.plumage.guards["feather"].on
