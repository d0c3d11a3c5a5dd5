"""Which blocks are copied to host memory, decided at each use by a request, and what happens if the decision fails."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.offload_tier import Tier, chain

from plumage.errors import ConfigurationError
from plumage.settings.engine_policies import RecordConfig
from plumage_engine.vllm.compat.kv_offload import LRUCachePolicy, ReqContext
from plumage_engine.vllm.offload.host_tier.residents import chunk_key
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager


def held(tier: Tier, name: str) -> int:
    """Leading blocks of the request's prompt that are in host memory."""
    keys = (block + bytes(4) for block in tier.engine.requests[name].block_hashes)
    return sum(1 for _ in takewhile(lambda key: tier.manager.residents.get(key) is not None, keys))


def serve(tier: Tier, name: str, prefix: int, times: int = 1, blocks: int = 3) -> str:
    """This many requests with a prefix of this many blocks, each with a block of its own. Returns the last one's
    name."""
    for turn in range(times):
        tier.serve(f"{name}{turn}", chain(prefix, blocks) + chain(hash((name, turn)) % 10**6 + 1000, 1))
    return f"{name}{times - 1}"


def test_prefix_is_admitted_once_frequent(
    tiny_model: Path,
) -> None:
    tier = Tier(tiny_model, min_frequency=3)
    assert held(tier, serve(tier, "a", 0, times=2)) == 0
    assert held(tier, serve(tier, "b", 0)) == 3
    assert len(tier.manager.residents) == tier.engine.stored_blocks == 3
    assert tier.counters.get("host_admissions") == 3
    assert tier.counters.get("host_refusals") == 2 * 4 + 1
    tier.check_idle()


def test_admission_all_copies_each_block_once(tiny_model: Path) -> None:
    tier = Tier(tiny_model, admission="All")
    serve(tier, "a", 0, times=4)
    assert tier.engine.stored_blocks == 3 + 4


def test_hot_prefix_replaces_coldest(tiny_model: Path) -> None:
    tier = Tier(tiny_model, chunks=3, min_frequency=2)
    cold = serve(tier, "cold", 0, times=3)
    warm = serve(tier, "warm", 1, times=3)
    assert (held(tier, cold), held(tier, warm)) == (3, 0)
    hot = serve(tier, "hot", 1)
    assert (held(tier, cold), held(tier, hot)) == (0, 3)
    tier.check_idle()


def test_admission_all_ignores_hotness(tiny_model: Path) -> None:
    tier = Tier(tiny_model, chunks=3, min_frequency=2, admission="All")
    serve(tier, "hot", 0, times=4)
    assert held(tier, serve(tier, "new", 1, blocks=2)) == 3


def test_request_counts_once_in_each_tier(tiny_model: Path) -> None:
    """Computed, found on the device, or loaded: each request counts each block of its prompt once."""
    tier = Tier(tiny_model, blocks=12, min_frequency=2, promotion="Off")
    for turn in range(6):
        name = serve(tier, f"a{turn}-", 0)
        serve(tier, f"else{turn}-", 1 + turn, blocks=8)
        key = chunk_key(tier.engine.requests[name].block_hashes[0] + bytes(4))
        assert tier.manager.hotness.frequency(key) == turn + 1
    assert tier.engine.loaded_blocks


def test_preempted_requests_count_once(tiny_model: Path) -> None:
    tier = Tier(tiny_model, blocks=12, min_frequency=2, arguments={"max_num_seqs": 4})
    for number in range(4):
        tier.engine.add(f"r{number}", chain(0, 1) + chain(50 + number, 1), 130)
    preempted = 0
    while tier.engine.scheduler.has_requests():
        preempted += len(tier.engine.step().preempted_req_ids or ())
        tier.check()
    assert preempted
    key = chunk_key(tier.engine.requests["r0"].block_hashes[0] + bytes(4))
    assert tier.manager.hotness.frequency(key) == 4


def test_pool_hotness_decides_residents(tiny_model: Path) -> None:
    pool: dict[int, float] = {}
    tier = Tier(tiny_model, chunks=3, min_frequency=2, prior=SimpleNamespace(prior=pool.get))
    here = serve(tier, "here", 0, times=9)
    there = serve(tier, "there", 1)
    pool.update({int.from_bytes(one[-8:], "big"): 1e9 for one in tier.engine.requests[there].block_hashes[:3]})
    there = serve(tier, "more", 1)
    assert (held(tier, here), held(tier, there)) == (0, 3)


def test_failed_decision_restores_vllm_manager(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = Tier(tiny_model, chunks=6, min_frequency=2)
    serve(tier, "a", 0, times=2)

    def fail(*given: object, **named: object) -> int:
        raise RuntimeError("the heap is torn")

    monkeypatch.setattr(tier.manager.residents, "admit", fail)
    tier.serve("next", chain(7, 4))
    assert not tier.manager.guard.on
    assert tier.counters.get("failures", "hostTier") == 1
    assert isinstance(tier.manager._policy, LRUCachePolicy)
    for number in range(6):
        tier.serve(f"then{number}", chain(20 + number, 4))
    again = tier.engine.stored_blocks
    tier.serve("last", chain(25, 4))
    assert tier.engine.stored_blocks == again
    assert tier.engine.pool.get_num_free_blocks() == tier.engine.pool.num_gpu_blocks - 1


def test_invalid_formula_stops_start(tiny_model: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown name 'popularity'"):
        Tier(tiny_model, priority="popularity * clock")


def test_each_group_has_its_own_root() -> None:
    manager, context = HostTierManager(16, 16, 4096), ReqContext("asks")
    names = [bytes([letter]) * 32 + group.to_bytes(4, "big") for group in (0, 1) for letter in (1, 2, 3)]
    context._offload_key_positions.update(zip(names, (16, 32, 48) * 2, strict=True))
    manager._count(names, context)
    found = [manager.hotness.table.get(chunk_key(name)) for name in names]
    assert [uses and uses.depth for uses in found] == [1, 2, 3, 1, 2, 3]
    assert [uses and uses.frequency for uses in found] == [1] * 6


def test_without_a_setting_copies_go_on_only_while_they_come_back(tiny_model: Path) -> None:
    tier = Tier(tiny_model, blocks=12, chunks=40, min_frequency=None, record=RecordConfig(), promotion="Off")
    for number in range(90):
        tier.serve(f"new{number}", chain(100 + number, 4))
    copied = tier.engine.stored_blocks
    assert 256 < copied < 330, "as many as a decision needs, and the chains that are tried after it"
    assert tier.manager.residents.least_uses.usual == 2
    assert tier.counters.get("host_wasted") >= 256
    for turn in range(40):
        for group in range(4):
            tier.serve(f"back{turn}-{group}", chain(500 + group, 4))
    assert tier.engine.loaded_blocks > 300, "the second use was enough"
    tier.check_idle()


def test_copies_that_come_back_are_made_after_one_use(tiny_model: Path) -> None:
    tier = Tier(tiny_model, blocks=12, chunks=40, min_frequency=None, record=RecordConfig(), promotion="Off")
    for turn in range(20):
        for group in range(6):
            tier.serve(f"back{turn}-{group}", chain(500 + group, 4))
    assert tier.manager.residents.least_uses.usual == 1
    assert tier.engine.stored_blocks == 6 * 4
    assert tier.counters.get("host_returns") > 0
    tier.check_idle()
