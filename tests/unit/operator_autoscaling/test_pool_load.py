"""From pods and reports to a pool's load."""

from __future__ import annotations

from typing import Any

import pytest
from support.fleets import START, agent, pod, router, waits

from plumage.fleet_report import WarmupReport
from plumage_operator.autoscaling.pods import pods_of_pool
from plumage_operator.autoscaling.pool_load import PodReports, ReportWindow, cache_hotness, pool_load

LATER = START + 1000


def load_of(pods: list[Any], agents: dict[str, list[Any]], routers: dict[str, list[Any]]) -> Any:
    """Two reports of each, 15 s apart, the last one seen at 100."""
    reports = PodReports()
    for report, into in ((agents, reports.agents), (routers, reports.routers)):
        for name, several in report.items():
            window = into.setdefault(name, ReportWindow())  # type: ignore[attr-defined]
            for place, one in enumerate(reversed(several)):
                window.reports.appendleft((100.0 - 15 * place, one))
    return pool_load(pods_of_pool("chat", pods), reports, len(agents))


def test_working_pool() -> None:
    pods = [pod("e0"), pod("e1"), pod("r0", "router"), pod("r1", "router")]
    load = load_of(
        pods,
        {
            name: [
                agent(name, LATER, 100, query_tokens=1000),
                agent(name, LATER + 15, 400, query_tokens=7000, running=3, kv_usage=0.5),
            ]
            for name in ("e0", "e1")
        },
        {
            "r0": [router(LATER, 10, 0, 0), router(LATER + 15, 15, 1000, 500, ttft=waits(9, 1))],
            "r1": [router(LATER, 10, 0, 0), router(LATER + 15, 12, 3000, 500, ttft=waits(9, 1))],
        },
    )
    assert [one.output_tokens_per_second for one in load.replicas] == [20.0, 20.0]
    assert [one.total_tokens_per_second for one in load.replicas] == [420.0, 420.0]
    assert [one.in_flight for one in load.replicas] == [3.0, 3.0]
    assert load.replicas[0].kv_usage == 0.5
    assert (load.arrivals, load.in_flight, load.seen) == (7, 2, 100.0)
    assert load.hit_ratio == 0.25
    assert load.ttft == pytest.approx(0.55)
    assert (load.cache, load.curve.hit_ratio(4000)) == (1000, 0.8)


def test_figures_of_some_routers_are_not_those_of_the_pool() -> None:
    pods = [pod("e0"), pod("r0", "router"), pod("r1", "router")]
    load = load_of(pods, {}, {"r0": [router(LATER), router(LATER + 15)]})
    assert load.seen is None
    assert load.arrivals is None
    starting = [pod("e0"), pod("r0", "router"), pod("r1", "router", ready=False)]
    assert load_of(starting, {}, {"r0": [router(LATER), router(LATER + 15)]}).arrivals == 0


def test_waiting_time_is_split_by_reason() -> None:
    """Three of four waiting requests are held back on purpose, so three quarters of the time are."""
    reports_of_agents = [
        agent("e0", LATER, queue_wait=waits(0, 0), waiting_held_back=3, waiting_for_capacity=1),
        agent("e0", LATER + 15, queue_wait=waits(0, 100), waiting_held_back=3, waiting_for_capacity=1),
    ]
    load = load_of([pod("e0")], {"e0": reports_of_agents}, {})
    assert load.queue_wait == pytest.approx(0.955)
    assert load.held_back == pytest.approx(0.75 * 0.955)


def test_queues_of_routers_are_part_of_load_and_wait() -> None:
    pods = [pod("e0"), pod("r0", "router"), pod("r1", "router")]
    agents = {"e0": [agent("e0", LATER, queue_wait=waits(0, 0)), agent("e0", LATER + 15, queue_wait=waits(0, 100))]}
    routers = {
        name: [router(LATER, queue_wait=waits(0, 0)), router(LATER + 15, queue_wait=waits(100, 0), queued=7)]
        for name in ("r0", "r1")
    }
    load = load_of(pods, agents, routers)
    assert load.queued == 14
    assert load.queue_wait == pytest.approx(0.955 + 0.095)
    assert load_of(pods, agents, {}).queued == 0.0


@pytest.mark.parametrize(
    ("made", "reports", "warming"),
    [
        (pod("e0", ready=False), [], True),
        (pod("e0", ready=False), [agent("e0", LATER, warmup=WarmupReport("Warming"))], True),
        (pod("e0", ready=False, phase="Pending", conditions=[]), [], False),
        (pod("e0", ready=False, containerStatuses=[{"restartCount": 3, "state": {}}]), [], False),
        (
            pod("e0", ready=False, containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]),
            [],
            False,
        ),
        (
            pod("e0", ready=False, containerStatuses=[{"restartCount": 1, "state": {}}]),
            [agent("e0", LATER, warmup=WarmupReport("Warming"))],
            True,
        ),
        (pod("e0"), [agent("e0", LATER)], False),
    ],
    ids=["new", "warms", "no node", "crashed", "no image", "crashed and warms again", "ready"],
)
def test_warming_replicas_are_counted(made: Any, reports: list[Any], warming: bool) -> None:
    load = load_of([made], {"e0": reports}, {})
    assert bool(load.warming) is warming


def test_terminating_pods_do_not_count() -> None:
    leaving = pod("e1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert [one.id for one in load_of([pod("e0"), leaving], {}, {}).replicas] == ["e0"]


def test_hotness_comes_from_agents() -> None:
    reports = PodReports()
    for name, hotness in (("e0", 50.0), ("e1", 7.0)):
        reports.agents[name] = ReportWindow()
        reports.agents[name].add(agent(name, LATER, hotness=hotness, running=2), 1.0)
    found = cache_hotness(pods_of_pool("chat", [pod("e0"), pod("e1"), pod("e2")]), reports.agents)
    assert [(one.id, one.hotness, one.in_flight) for one in found] == [
        ("e0", 50.0, 2.0),
        ("e1", 7.0, 2.0),
        ("e2", None, 0.0),
    ]


def test_ipv6_address_is_written_in_brackets() -> None:
    [engine] = pods_of_pool("chat", [pod("e0", address="fd00::7")]).engines
    assert engine.url == "http://[fd00::7]:8081/v1/plumage/stats"


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "Job", "name": "chat-engine-5d4f8", "controller": True}],
        [{"kind": "ReplicaSet", "name": "chat-engine-5d4f8"}],
        [{"kind": "ReplicaSet", "name": "theirs-5d4f8", "controller": True}],
        [{"kind": "ReplicaSet", "name": "chat-engine-more-5d4f8", "controller": True}],
        [{"kind": "ReplicaSet", "name": "chat-router-5d4f8", "controller": True}],
    ],
    ids=str,
)
def test_pod_with_only_the_labels_is_not_polled(owners: list[dict[str, Any]]) -> None:
    """It would receive the operator's token."""
    stranger = pod("stranger")
    stranger["metadata"]["ownerReferences"] = owners
    assert [one.name for one in pods_of_pool("chat", [stranger, pod("e0")]).engines] == ["e0"]
