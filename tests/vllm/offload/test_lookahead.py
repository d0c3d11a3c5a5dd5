"""Blocks of a waiting request that are only in host memory are copied to the device before its turn, without harm to
others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.offload_tier import Tier, chain

from plumage_bench.vllm.pretend import PAGE


def waiting_for(model: Path, *prefixes: int, blocks: int = 24, answer: int = 12, **named: Any) -> Tier:
    """One request decodes, alone in the batch. "asks0", … wait behind it, each with one of the prefixes of four blocks
    that are in host memory and no longer on the device. Nothing is promoted because it is hot."""
    named["arguments"] = {"max_num_seqs": 1, **named.get("arguments", {})}
    tier = Tier(model, blocks=blocks, min_frequency=2, **named)
    if tier.promoter is not None:
        tier.promoter._turn = SimpleNamespace(step=lambda prefill_tokens: False)
    for prefix in prefixes:
        for number in range(3):
            tier.serve(f"hot{prefix}-{number}", chain(prefix, 4) + chain(1000 + 10 * prefix + number, 1))
    tier.engine.scheduler.reset_prefix_cache(False, False)
    assert len(tier.manager.residents) == 4 * len(prefixes)
    tier.engine.add("decodes", chain(500, 1)[:-1], answer)
    tier.engine.step()
    for place, prefix in enumerate(prefixes):
        tier.engine.add(f"asks{place}", chain(prefix, 4) + chain(600 + place, 1), 2)
    return tier


@pytest.mark.parametrize("eviction", [None, "Hotness", "Rlt"])
def test_waiting_request_finds_promoted_blocks(tiny_model: Path, eviction: str | None) -> None:
    tier = waiting_for(tiny_model, 0, eviction=eviction)
    tier.engine.finish()
    assert tier.engine.cached["asks0"] == (128, 0)
    assert tier.engine.loaded_blocks == 0
    assert tier.counters.get("promotions_ahead") == tier.counters.get("promotions_used") == 4
    tier.check_idle()


def test_no_lookahead_waits_for_copy(tiny_model: Path) -> None:
    tier = waiting_for(tiny_model, 0, promotion_lookahead=0)
    tier.engine.finish()
    assert tier.engine.cached["asks0"] == (0, 128)


def test_lookahead_is_bounded(tiny_model: Path) -> None:
    tier = waiting_for(tiny_model, 0, 1, 2, promotion_lookahead=2, blocks=40)
    for _ in range(6):
        tier.engine.step()
    assert [tier.in_device(f"asks{place}") for place in range(3)] == [4, 4, 0]


def test_lookahead_keeps_blocks_of_waiting_requests(tiny_model: Path) -> None:
    """There is room for two and a half prefixes beside the decoding request: the first two are promoted, and stay until
    their turns."""
    tier = waiting_for(tiny_model, 0, 1, 2, blocks=13)
    for _ in range(8):
        tier.engine.step()
        tier.check()
    assert [tier.in_device(f"asks{place}") for place in range(3)] == [4, 4, 2]
    tier.engine.finish()
    assert [tier.engine.cached[f"asks{place}"][0] for place in range(2)] == [128, 128]
    tier.check_idle()


def test_shared_prefix_is_promoted_once(tiny_model: Path) -> None:
    tier = waiting_for(tiny_model, 0)
    for number in range(5):
        tier.engine.add(f"also{number}", chain(0, 4) + chain(700 + number, 1), 2)
    tier.engine.finish()
    assert tier.engine.promoted_blocks == 4
    assert all(tier.engine.cached[f"also{number}"][0] == 128 for number in range(5))


def test_lookahead_plan_is_bounded_per_step(tiny_model: Path) -> None:
    tier = waiting_for(tiny_model, 0, promotion_tokens=64, answer=30)
    tier.engine.promotion_steps = 0
    seen = []
    for _ in range(8):
        seen.append(tier.in_device("asks0"))
        tier.engine.step()
    assert {0, 2, 4} == set(seen)
    assert seen == sorted(seen)


@pytest.mark.parametrize("most", [4, 6])
def test_copies_under_way_count_against_bound(tiny_model: Path, most: int) -> None:
    tier = waiting_for(tiny_model, 0, 1, promotion_bytes=most * PAGE, answer=30)
    tier.engine.promotion_steps = 4
    seen = []
    for _ in range(16):
        tier.engine.step()
        seen.append((tier.engine.promoting, tier.in_device("asks0"), tier.in_device("asks1")))
    assert max(promoting for promoting, _, _ in seen) == most
    assert seen[-1] == (0, 4, 4)


@pytest.mark.parametrize("after", range(4))
def test_abort_during_promotion_frees_blocks(tiny_model: Path, after: int) -> None:
    tier = waiting_for(tiny_model, 0)
    tier.engine.promotion_steps = 3
    for _ in range(after):
        tier.engine.step()
    tier.engine.abort("asks0")
    tier.engine.finish()
    tier.check_idle()


@pytest.mark.parametrize("host", [True, False])
def test_reset_during_promotion_frees_blocks(tiny_model: Path, host: bool) -> None:
    tier = waiting_for(tiny_model, 0)
    tier.engine.promotion_steps = 4
    tier.engine.step()
    assert tier.promoter.pending
    assert tier.engine.reset(running=True, host=host)
    tier.engine.finish()
    tier.check_idle()


def test_lookahead_works_with_feather(tiny_model: Path) -> None:
    from plumage.settings.plugin_config import PluginSettings
    from plumage_engine.vllm.features import Features

    tier = waiting_for(tiny_model)
    asked = {"feather": {"policy": "ChtOrder"}, "eviction": None, "batchLimit": "Static"}
    features = Features(tier.engine.scheduler, PluginSettings.model_validate(asked))
    assert features.guards["feather"].on
    for number in range(3):
        tier.serve(f"hot{number}", chain(0, 4) + chain(1000 + number, 1))
    tier.engine.scheduler.reset_prefix_cache(False, False)
    tier.engine.add("decodes", chain(500, 1)[:-1], 12)
    tier.engine.step()
    tier.engine.add("asks", chain(0, 4) + chain(600, 1), 2)
    tier.engine.finish()
    assert tier.engine.cached["asks"] == (128, 0)
    assert tier.counters.get("promotions_ahead") == 4


def test_priority_queue_has_no_lookahead(tiny_model: Path) -> None:
    tier = waiting_for(tiny_model, 0, arguments={"scheduling_policy": "priority"})
    tier.engine.finish()
    assert tier.counters.get("promotions_ahead") == 0
    tier.check_idle()
