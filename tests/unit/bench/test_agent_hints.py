"""Sessions of workflows are as they are described, and contenders with hints use nothing but what they may see."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from plumage.blocks.pool import BlockPool
from plumage.routing.interface import Choice, Query, ReplicaState
from plumage.routing.load_policies import LeastLoad
from plumage_bench.benches.agents import hints
from plumage_bench.benches.agents.hints import CONTENDERS, Outcome
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.fleet import FleetRun, run_fleet
from plumage_bench.virtual_time.hinted_fleet import (
    HORIZON,
    AffinePolicy,
    HintedHotness,
    HintedRouting,
    Hints,
    ReturnTimes,
)
from plumage_bench.workloads.workflows import LEAST_PAUSE, MOST_PAUSE, WorkflowSessions, WorkflowShape
from plumage_engine.simulator.engine.settings import EngineSettings

SHAPE = WorkflowShape(rate=0.5, seconds=60.0)


def serve(made: Hints, blocks: int = 2048) -> tuple[FleetRun, HintedRouting]:
    """Two small replicas."""
    ours = Ours({"engine.simulator.cacheBlocks": blocks})
    engine: EngineSettings = ours.engine()
    if made.expects:
        engine = replace(engine, eviction=f"{HintedHotness.__module__}:HintedHotness", eviction_options={})
    kept: list[HintedRouting] = []

    def make(*given: object) -> HintedRouting:
        kept.append(HintedRouting(*given, hints=made))
        return kept[0]

    source = WorkflowSessions(replace(SHAPE, rate=0.1), 3)
    policy = ours.routing_policy(random.Random(1))
    return run_fleet([engine] * 2, policy, source, seed=1, until=300.0, make=make), kept[0]


def test_sessions_share_system_prompts_within_a_workflow_and_nothing_else() -> None:
    source = WorkflowSessions(SHAPE, 1)
    systems = {call.agent: tuple(call.system) for calls in source.calls for call in calls}
    assert len(set(systems.values())) == len(systems) > SHAPE.workflows
    for calls in source.calls:
        assert len({call.agent.split(".")[0] for call in calls}) == 1
        assert all(tuple(call.prompt.blocks[: len(call.system)]) == systems[call.agent] for call in calls)
    tails = [block for calls in source.calls for block in set(calls[0].prompt.blocks[len(calls[0].system) :])]
    assert len(tails) == len(set(tails))


def test_each_call_of_an_agent_continues_its_last_one_until_a_last_answer() -> None:
    source, pauses = WorkflowSessions(SHAPE, 1), []
    for calls in source.calls:
        last = {}
        for call in calls:
            before = last.get(call.agent)
            if before is not None and (before.tool or call.agent.endswith(".0")):
                said = (*before.prompt.blocks, *before.prompt.output_blocks)
                assert call.prompt.blocks[: len(said)] == said
                if before.tool.startswith("tool"):
                    pauses.append(call.delay)
            last[call.agent] = call
        assert calls[-1].agent.endswith(".0")
        assert not calls[-1].tool
    assert all(LEAST_PAUSE <= pause <= MOST_PAUSE for pause in pauses)
    assert min(pauses) < 5.0 < 30.0 < max(pauses)


def test_return_times_learn_by_key_and_count_what_never_returns() -> None:
    times = ReturnTimes()
    for number in range(4):
        times.ended(number, "tool", 10.0 * number)
        times.ended(100 + number, "last", 10.0 * number)
        times.continued((7, number, 8), 10.0 * number + 4.0)
    assert times.expected("tool") == pytest.approx(4.0)
    assert times.expected("last") is None
    times.ended(200, "tool", 30.0 + HORIZON)
    assert times.expected("last") == HORIZON


def test_affinity_halves_a_score_only_where_no_replica_holds_half() -> None:
    class Fixed(LeastLoad):
        def choose(self, query: Query, replicas: object) -> Choice:
            return Choice(0, (1.0, 1.5))

    policy, replicas = AffinePolicy(Fixed(rng=random.Random(1))), [ReplicaState(0), ReplicaState(1)]
    assert policy.choose(Query(0.0, 100.0, {}), replicas).slot == 0
    policy.preferred = 1
    assert policy.choose(Query(0.0, 100.0, {}), replicas).slot == 1
    assert policy.choose(Query(0.0, 100.0, {0: 60.0}), replicas).slot == 0


def test_blocks_of_prompts_that_return_late_are_evicted_first() -> None:
    plain, _ = serve(Hints("plain"))
    known, _ = serve(Hints("known", expects="Truth"))

    def hits(run: FleetRun) -> float:
        return sum(one.cached_tokens for one in run.served) / sum(one.arrival.prompt.tokens for one in run.served)

    assert hits(known) > hits(plain)


def test_pre_caching_computes_before_calls_and_never_more_than_one_prefix_at_a_time() -> None:
    run, routing = serve(Hints("pre", precaches=True))
    assert routing.precomputed > 0
    assert len(routing._busy) <= 2
    assert all(one.finished != one.finished or one.cached_tokens < one.arrival.prompt.tokens for one in run.served)


def test_report_has_each_gain_with_its_interval_and_names_the_best_hint() -> None:
    def outcome(key: str, seed: int) -> Outcome:
        waited = {"ours": 3000.0, "tool_call": 2000.0, "known": 1500.0}.get(key, 2900.0) + seed
        return Outcome(100, 0.5, waited, 0.0, 1.0, 2.0, 0.55)

    keys = [one.key for one in CONTENDERS]
    found = {(key, 3584, seed): outcome(key, seed) for key in keys for seed in range(5)}
    report = hints._report(found, keys, (3584,), range(5))
    assert report.keys["tool_call_gain"] == pytest.approx(1.5, rel=0.01)
    assert report.keys["prefill_gain_pairs"] == 5
    assert report.keys["hints_best"] == "tool_call"
    assert report.keys["held_share_3584"] == 0.55
    assert len(report.tables[0].rows) == len(keys)


@pytest.mark.parametrize("children", [0, 2])
def test_hint_that_comes_late_moves_idle_blocks_behind_all_others(children: int) -> None:
    """A prefix with several continuations keeps its place."""
    policy = HintedHotness(100)
    pool = BlockPool(100, policy)
    chains = [(1, 2, 3, 4), (11, 12, 13, 14), *((1, 2, 3, 4, 50 + child) for child in range(children))]
    for now, chain in enumerate(chains, start=1):
        held = pool.pin(chain, now)
        assert pool.allocate(len(chain) - held, now)
        pool.commit(chain[held:], chain[held - 1] if held else None, now)
        pool.release(chain, 0, now)
    policy.expect_late(pool.tree, chains[1], HORIZON, 10.0)
    assert policy.victim(10.0).hashes[-1] == 14
    policy.expect_late(pool.tree, chains[0], 100.0 * HORIZON, 10.0)
    assert policy.victim(10.0).hashes[-1] == (14 if children else 4)
