"""`routers`: how clients are spread, what an outage of the directory hides, and a run of three routers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from plumage.blocks.events import Stored
from plumage_bench.benches import routers
from plumage_bench.routing.contenders import OURS
from plumage_bench.routing.scenario import Scenario
from plumage_bench.virtual_time.directory_view import DirectoryView
from plumage_bench.virtual_time.routers import ALWAYS, Outage, Routed, Spread, run_routers
from plumage_bench.workloads import GspShape

SHAPE = GspShape(groups=8, queries=8, lengths=(512, 1024))


def test_clients_keep_their_router_and_all_routers_get_some() -> None:
    spread = Spread(3, 96, seed=1)
    first = [spread.router_of(client, 0.0) for client in range(96)]
    assert first == [spread.router_of(client, 500.0) for client in range(96)]
    assert min(Counter(first)[router] for router in range(3)) > 16
    assert first != [Spread(3, 96, seed=2).router_of(client, 0.0) for client in range(96)]


def test_clients_of_one_connection_have_one_router() -> None:
    spread = Spread(3, 4, seed=1)
    assert {spread.router_of(client, 0.0) for client in range(0, 100, 4)} == {spread.router_of(0, 0.0)}


def test_router_that_joins_gets_its_share_at_once_and_nothing_before() -> None:
    spread = Spread(3, 900, seed=1, joins=10.0)
    assert {spread.router_of(client, 9.9) for client in range(900)} == {0, 1}
    after = Counter(spread.router_of(client, 10.0) for client in range(900))
    assert after[2] == pytest.approx(300, rel=0.2)


def test_outage_hides_what_happens_until_the_snapshots_are_back() -> None:
    outage = Outage(10.0, 20.0, back=2.0)
    assert [outage.seen(now) for now in (9.0, 10.0, 19.0, 21.9, 22.0)] == [9.0, 10.0, 10.0, 10.0, 22.0]
    assert [outage.away(now) for now in (9.0, 10.0, 20.0)] == [False, True, False]
    assert ALWAYS.seen(1e9) == 1e9


def test_view_has_the_caches_of_now_after_an_outage() -> None:
    view = DirectoryView(lag=0.0, seen=Outage(10.0, 20.0, back=2.0).seen)
    view.sink(0)(Stored((1, 2), None))
    view.stepped(0, 15.0)
    view.hold_until((7,), 1, until=40.0)
    assert view.match((1, 2), 21.0) == {}
    assert view.match((7,), 21.0) == {1: 1}, "a router's own decisions need no directory"
    assert view.match((1, 2), 22.0) == {0: 2}


def _serve(routers_: int, outage: Outage = ALWAYS, joins: float = 0.0) -> list[Routed]:
    scenario = Scenario(SHAPE, 4.0, workers=2)
    policies = [OURS.make(index, 16) for index in range(routers_)]
    spread = Spread(routers_, 12, 1, joins)
    return run_routers(
        scenario.engines(OURS.eviction), policies, scenario.source(1), spread, seed=1, outage=outage, joins=joins
    )


def test_every_request_is_served_through_the_router_of_its_client() -> None:
    spread = Spread(3, 12, 1)
    requests = _serve(3)
    assert len(requests) == SHAPE.groups * SHAPE.queries
    assert all(one.router == spread.router_of(one.served.arrival.client, 0.0) for one in requests)
    assert all(one.served.ttft > 0.0 for one in requests)


def test_seed_repeats_a_run_with_an_outage() -> None:
    first, again = (
        [(one.router, one.served.ticket.slot, one.served.finished) for one in _serve(3, Outage(4.0, 8.0))]
        for _ in range(2)
    )
    assert first == again


def test_policies_of_three_routers_know_each_others_requests() -> None:
    scenario = Scenario(replace(SHAPE, queries=16), 4.0, workers=2)
    policies = [OURS.make(index, 16) for index in range(3)]
    run_routers(scenario.engines(OURS.eviction), policies, scenario.source(1), Spread(3, 12, 1), seed=1)
    one = OURS.make(0, 16)
    run_routers(scenario.engines(OURS.eviction), [one], scenario.source(1), Spread(1, 12, 1), seed=1)
    speed = _speed(one)
    assert all(_speed(policy) == pytest.approx(speed, rel=0.2) for policy in policies)


def _speed(policy: object) -> float:
    replicas = policy._replicas  # type: ignore[attr-defined]
    return float(sum(replica.backlog.c_miss for replica in replicas) / len(replicas))


def test_figures_of_a_run_with_a_new_router() -> None:
    requests = _serve(3, joins=5.0)
    begin = requests[0].served.arrival.at
    figures = routers.sum_up([*requests, *_late(requests[-1])], begin, last=2)
    assert figures.share == pytest.approx(sum(one.router == 2 for one in requests) / len(requests), abs=0.05)
    assert figures.p50 <= figures.p95
    assert 0.0 < figures.hits < 1.0


def _late(one: Routed) -> list[Routed]:
    """A request after the outage."""
    at = routers.AWAY + routers.SETTLED + 1_000.0
    served = replace(one.served, arrival=replace(one.served.arrival, at=at), first_token=at + 1.0, finished=at + 2.0)
    return [replace(one, served=served)]
