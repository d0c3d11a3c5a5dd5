"""`hotspot`: how the popularity of a prefix changes over time, and how many replicas serve it."""

from __future__ import annotations

import pytest

from plumage_bench.benches import hotspot
from plumage_bench.benches.hotspot import spread_over
from plumage_bench.routing.contenders import OURS
from plumage_bench.workloads import HOT, HotspotShape, hotspot_arrivals
from plumage_bench.workloads.hotspot import rate_at

SHAPE = HotspotShape()


def test_rate_rises_stays_and_falls() -> None:
    times = (0.0, 60.0, 90.0, 120.0, 209.0, 225.0, 240.0, 500.0)
    rates = [rate_at(SHAPE, at) for at in times]
    assert rates == pytest.approx([0.3, 0.3, 4.65, 9.0, 9.0, 4.65, 0.3, 0.3])
    assert SHAPE.high / (SHAPE.high + SHAPE.others) == pytest.approx(0.6)


def test_arrivals_follow_the_rate() -> None:
    arrivals = list(hotspot_arrivals(SHAPE, 1).initial())
    hot = [one.at for one in arrivals if one.prompt.group == HOT]
    peak = [at for at in hot if 120.0 <= at < 210.0]
    assert len(peak) == pytest.approx(9.0 * 90.0, rel=0.1)
    assert len([at for at in hot if at < 60.0]) < 40
    assert len(arrivals) - len(hot) == pytest.approx(6.0 * SHAPE.seconds, rel=0.1)
    assert [one.at for one in arrivals] == sorted(one.at for one in arrivals)


def test_prompts_share_their_prefix_and_the_system_prompt() -> None:
    shape = HotspotShape(system_tokens=64, hot_tokens=128, group_tokens=32, tail_tokens=32, groups=2)
    prompts = [one.prompt for one in hotspot_arrivals(shape, 1).initial()]
    assert len({tuple(one.blocks[:4]) for one in prompts}) == 1
    by_group = {group: {tuple(one.blocks[: 12 if group == HOT else 6]) for one in prompts if one.group == group}
                for group in (HOT, 0, 1)}  # fmt: skip
    assert all(len(prefixes) == 1 for prefixes in by_group.values())
    assert len({one.blocks[-1] for one in prompts}) == len(prompts)


def test_shared_system_prompt_alone_has_no_hot_prefix() -> None:
    arrivals = hotspot_arrivals(hotspot.CASES["system"], 1).initial()
    assert all(one.prompt.group != HOT for one in arrivals)


def test_number_of_replicas_counts_equal_shares() -> None:
    assert spread_over([]) == 0.0
    assert spread_over([3, 3, 3]) == 1.0
    assert spread_over([0, 1, 2, 3]) == 4.0
    assert spread_over([0, 0, 0, 1]) == pytest.approx(1.6)


def test_others_are_other_policies_and_other_settings() -> None:
    ours, *others = hotspot.contenders(quick=True)
    assert ours == OURS
    assert {one.eviction for one in others} == {OURS.eviction}
    assert sum(one.policy == OURS.policy for one in others) == len(hotspot.SETTINGS)
    assert all(one.options != OURS.options for one in others if one.policy == OURS.policy)
