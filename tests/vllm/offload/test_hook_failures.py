"""Any hook of the host tier raises, at any time: the feature is off and reports it, requests get blocks with the right
content, and at the end every block is free."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.offload_tier import Tier, chain
from vllm.config import KVEventsConfig

from plumage_engine.vllm.offload.promotion import connector_hooks
from plumage_engine.vllm.offload.promotion.promoter import Promoter

_RESIDENTS = (
    "admit", "get", "insert", "add_entry", "evict", "_drop", "clear", "on_store_miss", "on_request_finished",
)  # fmt: skip
"""Their `mark_evictable` and `mark_non_evictable` do nothing, and are not called."""


class _Fails:
    """Raises after `times` calls."""

    def __init__(self, own: Callable[..., Any], times: int, mine: Callable[..., bool] = lambda *given: True) -> None:
        self._own, self._left, self._mine = own, times, mine
        self.raised = False

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self._mine(*given):
            self._left -= 1
            if self._left < 0:
                self.raised = True
                raise RuntimeError("made to fail")
        return self._own(*given, **named)


def storm(tier: Tier, seed: int = 1, steps: int = 260) -> None:
    """Requests with few prefixes arrive and end, some are aborted, caches are reset. All others are answered."""
    rng, number, stayed = random.Random(seed), 0, set()
    for step in range(steps):
        if rng.random() < 0.4:
            number += 1
            tokens = chain(rng.randrange(5), rng.randrange(7)) + chain(1000 + number, 3)[: rng.randrange(1, 60)]
            tier.engine.add(f"r{number}", tokens, rng.randrange(1, 20))
            stayed.add(f"r{number}")
        if rng.random() < 0.04 and tier.engine.scheduler.requests:
            gone = rng.choice(sorted(tier.engine.scheduler.requests))
            tier.engine.abort(gone)
            stayed.discard(gone)
        if step % 87 == 86:
            tier.engine.reset(host=step > 200)
        tier.engine.step()
    tier.engine.finish(20_000)
    assert all(tier.engine.requests[name].is_finished() for name in stayed)
    assert tier.engine.reset()
    tier.serve("after", chain(0, 3))


def nothing_left(tier: Tier) -> None:
    pool = tier.engine.pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert not tier.connector._jobs
    assert not tier.connector._chunks_being_loaded
    assert tier.promoter is None or not tier.promoter.pending


def start(model: Path, **named: Any) -> Tier:
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 192, **named.pop("arguments", {})}
    return Tier(model, **{"blocks": 24, "chunks": 14, "min_frequency": 1, "arguments": limits, **named})


@pytest.mark.parametrize("times", [0, 9])
@pytest.mark.parametrize("method", _RESIDENTS)
def test_host_memory_failure_restores_vllm_manager(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, method: str, times: int
) -> None:
    tier = start(tiny_model)
    fails = _Fails(getattr(tier.manager.residents, method), 0 if method == "clear" else times)
    monkeypatch.setattr(tier.manager.residents, method, fails)
    storm(tier)
    assert fails.raised
    assert not tier.manager.guard.on
    assert "made to fail" in tier.manager.guard.reason
    assert tier.counters.get("failures", "hostTier")
    nothing_left(tier)


@pytest.mark.parametrize("times", [0, 3])
@pytest.mark.parametrize(
    "place", ["_promote", "_loading", "_place", "_check_unused", "device.take", "device.place", "end"]
)
def test_promotion_failure_loses_nothing(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, place: str, times: int
) -> None:
    tier = start(tiny_model)
    owner: Any = tier.promoter
    mine: Callable[..., bool] = lambda *given: True  # noqa: E731
    if place == "end":
        owner, place = tier.manager, "complete_load"
        mine = lambda keys, context: context.req_id.startswith("plumage-promotion")  # noqa: E731
    elif place == "_loading":
        mine = lambda job, begins: begins  # noqa: E731
    elif place.startswith("device."):
        owner, place = tier.promoter._device, place.removeprefix("device.")
    fails = _Fails(getattr(owner, place), times, mine)
    monkeypatch.setattr(owner, place, fails)
    storm(tier)
    assert fails.raised
    assert not tier.guard.on
    assert tier.counters.get("failures", "promotion")
    nothing_left(tier)


def test_pending_check_failure_is_counted(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = start(tiny_model)

    def fail(self: Promoter) -> bool:
        raise RuntimeError("made to fail")

    with monkeypatch.context() as patched:
        patched.setattr(Promoter, "pending", property(fail))
        storm(tier)
    assert tier.counters.get("failures", "promotion")
    nothing_left(tier)


def test_event_failure_restores_vllm_tracker(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    tier = start(tiny_model, arguments={"kv_events_config": events})
    monkeypatch.setattr(connector_hooks, "generate_block_hash_extra_keys", _Fails(lambda *given: (None, 0), 0))
    storm(tier)
    assert type(tier.connector._events_tracker) is connector_hooks.OffloadingEventsTracker
    assert tier.counters.get("failures", "promotion") == 1
    nothing_left(tier)


_OF_THE_DISK = {
    "disk.make_room": 15, "disk._start": 25, "disk._end_transfer": 25, "disk._written": 12, "disk._read": 10,
    "disk._collect_ended": 100, "disk.evicted_from_host": 20, "tiers._reserve": 80, "tiers._unreserve": 20,
    "tiers._write_ahead": 100, "memory._choose_victims": 30, "memory._tier": 60,
}  # fmt: skip
"""Successful calls before the failure. A storm makes over twice as many; their number depends on the disk's threads."""


@pytest.mark.parametrize(
    ("place", "times"), [*((place, 0) for place in _OF_THE_DISK), ("disk.clear", 0), *_OF_THE_DISK.items()]
)
def test_disk_failure_loses_nothing(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, times: int
) -> None:
    tier = start(tiny_model, chunks=8, disk=(tmp_path / "kv", 60))
    try:
        part, method = place.split(".")
        owner: Any = {"disk": tier.disk, "tiers": tier.connector.manager, "memory": tier.manager}[part]
        fails = _Fails(getattr(owner, method), times)
        monkeypatch.setattr(owner, method, fails)
        storm(tier)
        assert fails.raised
        assert not (tier.disk.guard.on and tier.manager.guard.on)
        assert tier.counters.get("failures", "disk") + tier.counters.get("failures", "hostTier")
        nothing_left(tier)
    finally:
        tier.close()
