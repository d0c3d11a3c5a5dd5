"""The fleet of variable size in the benches `autoscale` and `victim`."""

from __future__ import annotations

from plumage_bench.benches.autoscale import BLOCK, CASES, Phase, arrivals, engine, follow
from plumage_bench.benches.victim import after_loss
from plumage_bench.routing.contenders import OURS
from plumage_bench.virtual_time.elastic import START, ElasticFleet


def small(replicas: int) -> ElasticFleet:
    return ElasticFleet(engine(), OURS.make(1, BLOCK), replicas, seed=1)


def test_replica_serves_after_its_start_and_gets_nothing_new_once_it_drains() -> None:
    fleet = small(2)
    served = list(arrivals([Phase(100.0, 0.3, 4)], 512, 1))
    fleet.fleet.call_at(10.0, lambda: fleet.resize(3))
    seen = []
    for at in (10.5, 10.5 + START, 60.0):
        fleet.fleet.call_at(at, lambda: seen.append((fleet.wanted, fleet.ready)))
    fleet.fleet.call_at(50.0, lambda: fleet.resize(1, leaving=[0, 1]))
    fleet.serve(served, 400.0)
    assert seen == [(3, [0, 1]), (3, [0, 1, 2]), (1, [2])]
    assert fleet.answered == 512 * len(served)  # the requests in flight at the two removed replicas were answered


def test_autoscaler_sees_load_and_replicas() -> None:
    fleet = small(1)
    fleet.serve(arrivals([Phase(60.0, 0.5, 1)], 512, 1), 60.0)
    load = fleet.load(60.0)
    assert load.curve is not None
    assert load.curve.accesses > 0
    assert 0.5 < (load.hit_ratio or 0.0) < 0.875
    assert load.ttft is not None
    assert load.queue_wait is not None
    assert load.replicas[0].total_tokens_per_second
    [replica] = fleet.cache_hotness()
    assert replica.hotness


def test_seed_repeats_a_run() -> None:
    tokens = CASES[0]
    assert follow(tokens, 3, 0.2) == follow(tokens, 3, 0.2)
    assert after_loss(3, first=4, warm=90.0, coldest=True) == after_loss(3, first=4, warm=90.0, coldest=True)
