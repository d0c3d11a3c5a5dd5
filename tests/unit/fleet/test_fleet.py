"""A fleet in virtual time: every request is served once, a seed repeats a run, and routing by prefix gains hits."""

from __future__ import annotations

import random
from math import isnan

import pytest

from plumage.routing import RoutingPolicy
from plumage_bench.baselines.routing import POLICY_NAMES, make_policy
from plumage_bench.ours import Ours
from plumage_bench.routing.contenders import BASELINES, MATRIX, OURS, Contender
from plumage_bench.routing.rate_search import highest_rate
from plumage_bench.routing.scenario import Scenario, measure, pooled
from plumage_bench.virtual_time.fleet import FleetRun, run_fleet
from plumage_bench.workloads import ClosedLoop, GspShape, MultiturnShape, OpenLoop, conversations, gsp_prompts

_SHAPE = GspShape(groups=24, queries=8, lengths=(256, 512, 1024))
_OURS = {"engine.simulator.maxNumSeqs": 256, "engine.feather.policy": "Fcfs"}
_ENGINES = [Ours({**_OURS, "engine.simulator.cacheBlocks": 600}).engine()] * 3


def _policy(name: str) -> RoutingPolicy:
    return make_policy(name, rng=random.Random(1))


def _run(name: str, rate: float = 40.0, late_after: float = float("inf")) -> FleetRun:
    source = OpenLoop(gsp_prompts(_SHAPE, 1), rate, 1)
    return run_fleet(_ENGINES, _policy(name), source, seed=1, late_after=late_after)


def _hits(run: FleetRun) -> float:
    tokens = sum(served.arrival.prompt.tokens for served in run.served)
    return sum(served.cached_tokens for served in run.served) / tokens


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_request_is_served_once_and_no_work_is_left(name: str) -> None:
    run = _run(name)
    assert run.complete
    assert len(run.served) == 24 * 8
    assert not any(isnan(served.finished) or served.ttft <= 0 or served.latency < served.ttft for served in run.served)
    for worker in run.workers:
        assert worker.state.routed == 0
        assert worker.state.prefill_tokens == pytest.approx(0.0, abs=1e-6)
        assert worker.state.decode_blocks == pytest.approx(0.0, abs=1e-6)
        assert len(worker.engine) == 0


def test_seed_repeats_a_run() -> None:
    one, other = _run("Lbgr"), _run("Lbgr")
    assert [served.ticket.slot for served in one.served] == [served.ticket.slot for served in other.served]
    assert [served.finished for served in one.served] == [served.finished for served in other.served]


def test_prefix_routing_has_more_hits_than_round_robin() -> None:
    assert _hits(_run("Lbgr")) > 1.2 * _hits(_run("RoundRobin"))


def test_conversations_return_to_their_replica() -> None:
    rounds = conversations(MultiturnShape(clients=12, rounds=(3,)), 1)
    run = run_fleet([Ours(_OURS).engine()] * 3, _policy("Lbgr"), ClosedLoop(rounds, 2.0, 1), seed=1)
    assert len(run.served) == 36
    # Rounds two and three find all but the newest input: 1024 of 2052 and 2052 of 3080 tokens, in whole blocks.
    assert _hits(run) > 0.9 * (1024 + 2052) / (1024 + 2052 + 3080)


def test_overloaded_run_stops_when_its_percentile_is_lost() -> None:
    run = _run("RoundRobin", rate=2000.0, late_after=0.5)
    assert not run.complete
    assert _run("RoundRobin", rate=1.0, late_after=2.0).complete


def test_highest_rate_keeps_the_percentile() -> None:
    scenario = Scenario(_SHAPE, 30.0, workers=2, cache_tokens=9600)
    contender = Contender("least load", "LeastLoad")
    rate = highest_rate(contender, scenario, 1, tolerance=1.05)
    kept = measure(contender, scenario.at(rate), 1)
    beyond = measure(contender, scenario.at(rate * 1.3), 1)
    assert kept.ttft_at(0.95) <= 2.0 < beyond.ttft_at(0.95)


def test_search_stops_at_the_floor() -> None:
    scenario, contender = Scenario(_SHAPE, 30.0, workers=2, cache_tokens=9600), Contender("least load", "LeastLoad")
    rate = highest_rate(contender, scenario, 1)
    floor = 2.0 * rate
    assert rate < highest_rate(contender, scenario.at(4.0 * rate), 1, floor=floor) <= floor


@pytest.mark.parametrize("contender", [OURS, *MATRIX, *BASELINES], ids=lambda contender: contender.label)
def test_every_contender_can_be_measured(contender: Contender) -> None:
    scenario = Scenario(GspShape(groups=6, queries=4, lengths=(256, 512)), 20.0, cache_tokens=4096)
    figures = pooled([measure(contender, scenario, seed) for seed in (1, 2)])
    assert len(figures.ttft) == 48
    assert 0.0 <= figures.hit_ratio < 0.5
    assert figures.throughput > 0
    assert figures.muv >= 0
