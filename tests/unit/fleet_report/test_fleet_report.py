"""Reports between operator, routers and agents: read back as written, and readable in other versions."""

from __future__ import annotations

import random

import msgspec
import pytest

from plumage.errors import ConfigurationError
from plumage.fleet_report import (
    MOST_POINTS,
    AgentReport,
    HistogramReport,
    NewerReportError,
    ReplicaReport,
    RouterReport,
    curve_points,
    read_agent_report,
    read_router_report,
)
from plumage.mrc import ReuseSampler


def test_reports_read_back_as_written() -> None:
    router = RouterReport(
        "chat", "r-0", waiting=3, ttft=HistogramReport([1.0], [2, 3], 4.5), replicas=[ReplicaReport("a")]
    )
    assert b'"held":3' in msgspec.json.encode(router), "older operators read this name"
    assert read_router_report(msgspec.json.encode(router)) == router
    agent = AgentReport("chat-0", waiting_held_back=2)
    assert b'"waitingHeldBack":2' in msgspec.json.encode(agent)
    assert read_agent_report(msgspec.json.encode(agent)) == agent


def test_another_minor_version_is_read() -> None:
    assert read_agent_report(b'{"replica": "a", "fieldOfTomorrow": [1]}') == AgentReport("a")


def test_later_version_and_nonsense_are_refused() -> None:
    with pytest.raises(NewerReportError, match="upgrade"):
        read_agent_report(b'{"replica": "a", "version": 2}')
    for data in (b"", b"[]", b"{}", b'{"replica": 7}'):
        with pytest.raises(ConfigurationError):
            read_agent_report(data)


def test_quantiles_cover_the_time_since_the_last_report() -> None:
    first = HistogramReport([0.1, 1.0, 10.0], [8, 8, 8, 8], 0.4)
    second = HistogramReport([0.1, 1.0, 10.0], [8, 18, 18, 18], 5.4)
    fresh = second.since(first)
    assert fresh.count == 10
    assert fresh.quantile(0.5) == pytest.approx(0.55)
    assert first.since(second) == first  # a restarted process
    assert HistogramReport().quantile(0.9) is None
    assert HistogramReport([1.0], [0, 4], 40.0).quantile(0.9) == 1.0


def test_curve_of_few_points_is_equivalent() -> None:
    rng, sampler = random.Random(1), ReuseSampler()
    keys = [rng.getrandbits(64) for _ in range(20_000)]
    for _ in range(100_000):
        sampler.access(keys[int(rng.paretovariate(0.8)) % len(keys)])
    curve = sampler.curve()
    assert len(curve.sizes) > MOST_POINTS
    points = curve_points(curve, 64.0)
    assert len(points.tokens) <= MOST_POINTS
    assert points.tokens[-1] == curve.sizes[-1] * 64
    thin = points.as_curve()
    for blocks in (10, 100, 1000, 5000, 10_000, 19_000):
        assert thin.hit_ratio(blocks * 64) == pytest.approx(curve.hit_ratio(blocks), abs=0.03)
