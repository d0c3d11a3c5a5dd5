"""The host tier of a simulated engine: evicted prefixes return over PCIe, hot ones before they are requested."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from plumage.blocks.events import CPU, BlockEvent, Cleared, Removed
from plumage.errors import ConfigurationError, StateError
from plumage.tiering import HostTier
from plumage_engine.simulator.engine.device import make_device
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

PREFIX = 10  # blocks of a family's prefix; a prompt has a tail of five more tokens
NAMES = count()


def make_engine(*, host_blocks: int = 100, pcie: float = 25e9, **tier: Any) -> SimEngine:
    """Room for three prefixes on the device."""
    options = {"min_frequency": 1, "promotion": "Off", **tier}
    device = make_device("gpu", pcie=pcie)
    settings = EngineSettings(
        block_size=16, cache_blocks=34, host_blocks=host_blocks, max_num_seqs=256, tier_options=options, device=device,
        queue="Fcfs", eviction="Lru", batch_limit="Static",
    )  # fmt: skip
    return SimEngine(settings, rng=random.Random(0))


def tier_of(engine: SimEngine) -> HostTier:
    assert engine.host is not None
    return engine.host.tier


def blocks(family: int) -> list[int]:
    return [1000 * family + level for level in range(PREFIX)]


def ask(engine: SimEngine, *families: int, output: int = 1) -> tuple[int, float]:
    """One request after the other. Returns the cached tokens of the last one, and its time."""
    cached, now = -1, 0.0
    for family in families:
        engine.submit(SimRequest(next(NAMES), PREFIX * 16 + 5, blocks(family), output, 0.0), 0.0)
        now = 0.0
        while (report := engine.step(now)) is not None:
            now += report.seconds
            for _, tokens in report.finished:
                cached = tokens
    return cached, now


def test_evicted_prefix_is_copied_back_instead_of_computed() -> None:
    engine = make_engine()
    assert ask(engine, 0, 1, 2, 3, 4, 0)[0] == PREFIX * 16
    counters = engine.counters
    assert counters.hit_tokens == 0
    assert counters.host_hit_tokens == PREFIX * 16
    assert counters.host_query_tokens == counters.query_tokens


def test_evicted_prefix_is_computed_without_a_host_tier() -> None:
    engine = make_engine(host_blocks=0)
    assert ask(engine, 0, 1, 2, 3, 4, 0)[0] == 0
    assert engine.counters.host_query_tokens == 0


def test_rarely_used_prefixes_are_not_copied_to_host_memory() -> None:
    engine = make_engine(min_frequency=3)
    ask(engine, 0, 0, 0, 1, 2, 3, 4, 5)
    assert all(block in tier_of(engine) for block in blocks(0))
    assert not any(block in tier_of(engine) for block in blocks(1))


def test_full_tier_keeps_the_hotter_prefix_unless_everything_is_admitted() -> None:
    families = (0, 0, 0, 0, 1, 2, 3, 4, 5, 6)
    hot = make_engine(host_blocks=PREFIX, record={"aging_interval": 100})
    ask(hot, *families)
    assert all(block in tier_of(hot) for block in blocks(0))
    assert not any(block in tier_of(hot) for block in blocks(3))
    assert tier_of(hot).refused > 0
    everything = make_engine(host_blocks=PREFIX, admission="All")
    ask(everything, *families)
    assert any(block in tier_of(everything) for block in blocks(3))
    assert tier_of(everything).refused == 0


def test_step_takes_as_long_as_its_copies() -> None:
    quick, slow = make_engine(), make_engine(pcie=1e6)
    for engine in (quick, slow):
        ask(engine, 0, 1, 2, 3, 4)
    copied = PREFIX * 16 * slow.settings.device.kv_bytes_per_token
    assert ask(slow, 0)[1] >= copied / 1e6 > 10 * ask(quick, 0)[1]


@pytest.mark.parametrize(("by", "promoted"), [("Hotness", True), ("Frequency", True), ("Depth", False), ("Off", False)])
def test_hot_prefix_is_promoted_before_its_request(by: str, promoted: bool) -> None:
    """Family 0 is hotter than its replacement, and no nearer to the root."""
    engine = make_engine(promotion=by)
    ask(engine, 0, 0, 0, 0, 1, 2, 3, 4, output=40)
    assert (engine.pool.match(blocks(0)) == PREFIX) is promoted
    assert (tier_of(engine).loaded > 0) is promoted
    assert engine.pool.in_use == 0


def test_full_tier_ranks_by_the_formula_of_the_user() -> None:
    """Family 0 was used often and long ago, 1 and 2 once and recently."""
    families = (0, 0, 0, 0, 1, 2, 3, 4, 5)
    often = make_engine(host_blocks=PREFIX, priority="frequency")
    ask(often, *families)
    assert all(block in tier_of(often) for block in blocks(0))
    shallow = make_engine(host_blocks=PREFIX, priority="0 - frequency")
    ask(shallow, *families)
    assert not any(block in tier_of(shallow) for block in blocks(0))
    assert tier_of(shallow).used == PREFIX


def test_promotion_uses_the_same_formula() -> None:
    families = (0, 0, 0, 0, 1, 2, 3, 4)
    for priority, promoted in (("frequency * clock", True), ("frequency", True), ("0 - frequency", False)):
        engine = make_engine(promotion="Hotness", priority=priority)
        ask(engine, *families, output=40)
        assert (engine.pool.match(blocks(0)) == PREFIX) is promoted, priority


def test_explicit_default_formula_changes_nothing() -> None:
    families = [random.Random(5).randrange(8) for _ in range(60)]
    left, right = (
        make_engine(host_blocks=2 * PREFIX, promotion="Hotness", **tier)
        for tier in ({}, {"priority": "frequency * clock", "record": {"fingerprint_bits": 16, "aging_interval": 100}})
    )
    assert ask(left, *families, output=9) == ask(right, *families, output=9)
    assert (tier_of(left).stored, tier_of(left).loaded) == (tier_of(right).stored, tier_of(right).loaded)


def test_record_takes_its_widths_and_its_ageing() -> None:
    engine = make_engine(record={"frequency_bits": 2, "clock_bits": 4, "aging_interval": 5})
    ask(engine, 0, *([1] * 12))
    assert engine.host is not None
    once, often = (engine.host.record.get(blocks(family)[-1]) for family in (0, 1))
    assert once is not None
    assert often is not None
    assert once.clock == 15 - 2, "twelve requests later, one down for every five"
    assert once.frequency == 1
    assert 1 < often.frequency <= 3
    assert often.clock == 15
    assert engine.host.record.table.bytes == engine.host.record.table.slots * 5, "two bytes of fingerprint"
    with pytest.raises(ConfigurationError, match="clock_bits"):
        make_engine(record={"clock_bits": 40})


def test_invalid_formula_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown name 'popularity'"):
        make_engine(priority="popularity")


def test_copies_over_the_link_are_counted_in_each_direction() -> None:
    engine = make_engine()
    block = 16 * engine.settings.device.kv_bytes_per_token
    ask(engine, 0, 1, 2, 3, 4, 0)
    assert engine.host is not None
    assert engine.host.stores.bytes == tier_of(engine).stored * block > 0
    assert engine.host.loads.bytes == tier_of(engine).loaded * block == PREFIX * block
    assert engine.host.loads.sizes.count == 1
    assert engine.host.loads.sizes.sum == PREFIX * block


@pytest.mark.parametrize("external", [False, True])
def test_reset_clears_the_device_and_on_request_the_host(external: bool) -> None:
    events: list[BlockEvent] = []
    engine = make_engine()
    watched = SimEngine(engine.settings, rng=random.Random(0), sink=events.append)
    ask(watched, 0, 1, 2, 3, 4)
    held = tier_of(watched).used
    assert held > 0
    events.clear()
    assert watched.reset_prefix_cache(0.0, external=external)
    assert watched.pool.cached == 0
    assert tier_of(watched).used == (0 if external else held)
    lost = [block for event in events if isinstance(event, Removed) and event.medium == CPU for block in event.hashes]
    assert len(lost) == len(set(lost)) == (held if external else 0)
    assert events[-1] == Cleared()
    assert ask(watched, 0)[0] == (0 if external else PREFIX * 16)


def test_reset_waits_for_requests_unless_it_preempts_them() -> None:
    engine = make_engine()
    engine.submit(SimRequest("busy", 165, blocks(0), 50, 0.0), 0.0)
    now = 0.0
    for _ in range(5):
        report = engine.step(now)
        assert report is not None
        now += report.seconds
    with pytest.raises(StateError, match="end_step"):
        engine.reset_prefix_cache(now)
    engine.end_step(now)
    assert not engine.reset_prefix_cache(now)
    assert engine.pool.match(blocks(0)) == PREFIX
    assert engine.reset_prefix_cache(now, running=True)
    assert engine.pool.match(blocks(0)) == engine.pool.in_use == 0
    assert (engine.load().running, engine.load().waiting, engine.counters.preempted) == (0, 1, 1)
    finished = []
    while (report := engine.step(now)) is not None:
        now += report.seconds
        finished += report.finished
    assert finished == [("busy", 0)]
    assert engine.counters.generated_tokens == 50


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        make_engine(admission="Sometimes")
    with pytest.raises(ConfigurationError):
        make_engine(promotion="Sometimes")


def test_promoted_blocks_are_followed_only_while_the_device_has_them() -> None:
    engine, rng = make_engine(host_blocks=60, promotion="Hotness"), random.Random(2)
    assert engine.host is not None
    followed = 0
    for _ in range(300):
        ask(engine, int(12 * rng.random() ** 2), output=3)
        followed = max(followed, len(engine.host._unused))
        assert all(block in engine.pool.tree for block in engine.host._unused)
    assert followed
    engine.reset_prefix_cache(0.0)
    assert not engine.host._unused
