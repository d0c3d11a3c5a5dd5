"""The bench `kvmetrics`: its loads, what its observer counts, and how runs become figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from plumage.errors import StateError
from plumage.routing import make_policy
from plumage_bench.benches import kvmetrics
from plumage_bench.benches.kvmetrics import batches, fleets, sessions
from plumage_bench.benches.kvmetrics.batches import Sweep
from plumage_bench.benches.kvmetrics.observer import COST, Observed, Window
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.fleet import Served, Worker, run_fleet
from plumage_bench.workloads import GspShape, OpenLoop, Prompt, gsp_prompts
from plumage_engine.simulator.engine.request import StepReport

FIGURES = Observed(0.5, 0.2, 0.05, 100.0, 9.0, 8.0, 0.9, 0.1, 0.0, 0.6, 12.0, 500)


def engine(blocks: int, limit: int = 64) -> Ours:
    return Ours(
        {
            "engine.simulator.blockSize": sessions.BLOCK,
            "engine.simulator.cacheBlocks": blocks,
            "engine.simulator.maxNumSeqs": limit,
        }
    )


@pytest.mark.parametrize("context", [2048, 8192, 32_768])
def test_longest_conversation_ends_at_the_context(context: int) -> None:
    made = sessions.sessions(context, 64, 0, 1)
    whole = [one[-1].tokens + one[-1].output_tokens for one in made]
    assert max(whole) == context
    assert {len(one) for one in made} == {2, 4, 6, 8}
    assert len({one[0].blocks[0] for one in made}) == sessions.APPLICATIONS
    assert 0.8 < sessions.hit_ceiling(made) < 0.9


def test_clients_of_the_beginning_are_in_mid_conversation() -> None:
    made = sessions.sessions(2048, 400, 200, 1)
    assert sum(len(one) for one in made[:200]) < 0.8 * sum(len(one) for one in made[200:])
    assert min(len(one) for one in made) == 1


def test_load_is_what_cold_caches_could_just_not_serve() -> None:
    prompts = sessions.of_context(8192)
    rate = sessions.cold_rate(prompts, 4)
    mean = sum(COST.flops(0, one.tokens) for one in prompts) / len(prompts)
    assert rate * mean / 4 == pytest.approx(
        0.6 * 181e12, rel=0.15
    )  # the preset's FLOP/s; it counts the output layer too


def test_clients_of_the_ramp_double() -> None:
    starts = sessions.doubling(16, 10.0)
    counts = [sum(at <= now for at in starts) for now in (0, 10, 20, 30, 40)]
    assert counts == [1, 2, 4, 8, 16]
    ramp = sessions.Ramp(sessions.sessions(2048, 40, 16, 1), starts)
    arrivals = list(ramp.initial())
    assert [one.at for one in arrivals] == starts
    assert len(ramp) == sum(1 for one in _played(ramp, arrivals))


def _played(ramp: sessions.Ramp, arrivals: list[Any]) -> Sequence[Any]:
    """All arrivals, where each answer takes a second."""
    for one in arrivals:
        following = ramp.after(one.client, one.at + 1.0)
        if following is not None:
            assert following.at == one.at + 1.0
            arrivals.append(following)
    return arrivals


class _Exact:
    """Counts by sets and lists what `Window` counts by the product's bounded parts."""

    def __init__(self) -> None:
        self.total = self.repeated = 0.0
        self.computed: set[int] = set()
        self.prompts: dict[int, Prompt] = {}
        self.names: dict[int, Sequence[int]] = {}
        self.usage: list[tuple[float, float]] = []
        self.preempted = 0

    def routed(self, number: int, served: Served) -> None:
        prompt = served.arrival.prompt
        self.prompts[number] = prompt
        self.names[number] = (*prompt.blocks, *prompt.output_blocks)

    def stepped(self, worker: Worker, report: StepReport, now: float) -> None:
        for name, start, tokens in report.chunks:
            names = self.names[int(str(name))]
            self.total += COST.flops(start, start + tokens)
            for at in range(start, start + tokens):
                block = at // sessions.BLOCK
                if block < len(names) and names[block] in self.computed:
                    self.repeated += COST.flops(at, at + 1)
            self.computed |= set(names[start // sessions.BLOCK : (start + tokens) // sessions.BLOCK])
        for name, _ in report.finished:  # no step has read the last token
            prompt = self.prompts[int(str(name))]
            full = (prompt.tokens + prompt.output_tokens - 1) // sessions.BLOCK
            self.computed |= set(self.names[int(str(name))][:full])
        self.usage.append((report.seconds, report.kv_usage))
        self.preempted += len(report.preempted)


class _Both:
    def __init__(self, *observers: Any) -> None:
        self._observers = observers

    def routed(self, number: int, served: Served) -> None:
        for one in self._observers:
            one.routed(number, served)

    def stepped(self, worker: Worker, report: StepReport, now: float) -> None:
        for one in self._observers:
            one.stepped(worker, report, now)


def test_window_counts_what_the_steps_say() -> None:
    """A small cache, so that blocks are evicted and requests preempted."""
    window, exact = Window(1, 0.0), _Exact()
    source = sessions.saturating(2048, 40, 24, 1)
    only = make_policy("RoundRobin", rng=random.Random(1))
    run = run_fleet([engine(700).engine()], only, source, seed=1, observer=_Both(window, exact))
    found = window.observed()
    assert exact.preempted > 0
    assert found.preempted == exact.preempted / len(run.served)
    assert found.ended == len(run.served) == len(source)
    assert found.rcr == pytest.approx(exact.repeated / exact.total, rel=0.01)
    assert found.rcr > 0.1
    seconds = sum(one for one, _ in exact.usage)
    mean = sum(one * usage for one, usage in exact.usage) / seconds
    assert found.usage == pytest.approx(mean)
    assert found.muv == pytest.approx((sum(one * (usage - mean) ** 2 for one, usage in exact.usage) / seconds) ** 0.5)
    tokens = sum(one.arrival.prompt.tokens for one in run.served)
    assert found.chr == pytest.approx(sum(one.cached_tokens for one in run.served) / tokens)
    assert 0.5 < found.evicting <= 1
    assert not window._open
    assert not window._reached
    assert window._engines[0].context == 0


def test_order_of_the_batch_reaches_the_engines_of_a_fleet() -> None:
    """Prompts of eight groups come in turn, and the cache has room for two. The tree's order takes one group after the
    other."""
    hits = {}
    for queue in ("Fcfs", "ChtOrder"):
        settings = replace(engine(150, 2).engine(), queue=queue, queue_options={})
        window = Window(1, 0.0)
        prompts = gsp_prompts(GspShape(groups=8, queries=8, lengths=(1024,), shared=0.9, round_robin=True), 1)
        only = make_policy("RoundRobin", rng=random.Random(1))
        run_fleet([settings], only, OpenLoop(prompts, 1e9, 1), seed=1, observer=window)
        hits[queue] = window.observed().chr
    assert hits["ChtOrder"] > 0.7
    assert hits["Fcfs"] < 0.1


def test_run_ends_at_its_time() -> None:
    source = sessions.saturating(2048, 400, 32, 1)
    only = make_policy("RoundRobin", rng=random.Random(1))
    run = run_fleet([engine(4000).engine()], only, source, seed=1, until=10.0)
    assert 5.0 < run.seconds <= 10.0
    assert len(run.served) < len(source)


def sweep(**rates: tuple[float, float, float]) -> Sweep:
    """rates: by limit (tokens a second, seconds between tokens, preempted)."""
    return Sweep(
        {
            int(name[1:]): replace(FIGURES, rate=rate, between=between, preempted=preempted)
            for name, (rate, between, preempted) in rates.items()
        }
    )


def test_optimal_batch_sustains_its_rate() -> None:
    found = sweep(_4=(90, 0.05, 0), _8=(150, 0.1, 0.01), _16=(170, 0.3, 0), _32=(180, 0.1, 0.02))
    assert (found.obs, found.tas) == (8, 150)
    assert [found.error(batch) for batch in (2, 4, 8, 16, 64)] == [2, 1, 0, 1, 3]
    none = sweep(_4=(90, 0.3, 0), _8=(150, 0.3, 0))
    assert (none.obs, none.tas) == (4, 0)


def test_levels_have_an_interval_from_five_seeds_on() -> None:
    keys = kvmetrics.level_keys("chr", [0.7, 0.72, 0.74, 0.76, 0.78])
    assert keys["chr"] == pytest.approx(0.74)
    assert keys["chr_low"] == pytest.approx(0.74 - 2.776 * 0.0316228 / 5**0.5, abs=1e-4)
    assert kvmetrics.level_keys("chr", [0.7, 0.8])["chr_low"] == 0.7


def test_closing_line_compares_eviction_alone() -> None:
    found = kvmetrics._Found()
    for load in (*fleets.CONTEXTS, fleets.MIX):
        for row in (*fleets.BY_EVICTION, *fleets.PARTS):
            level = 1.0 if row == fleets.OURS else 1.25 if row.label == "Plumage + LRU" else 9.0
            found.fleet[load.label, row.label] = [replace(FIGURES, muv=0.04 * level, p99_evicting=8 * level)] * 5
    for ladder in batches.LADDERS:
        found.sweeps[ladder.label, "Hotness"] = [sweep(_8=(90, 0.05, 0), _16=(150, 0.1, 0))] * 2
        found.estimates[ladder.label] = [(16, 140.0), (64 if ladder.label == "8k" else 16, 140.0)]
    keys = kvmetrics.closing(found)
    assert (keys["chr"], keys["chr_low"]) == (0.5, 0.5)
    assert keys["muv"] == pytest.approx(0.04)
    assert keys["muv_over_lru"] == pytest.approx(0.8)
    assert keys["p99_under_eviction_over_lru"] == pytest.approx(0.8)
    assert keys["obs_error_steps"] == 2
    assert (keys["obs_8k"], keys["obs_estimated_8k"], keys["tas_2k"]) == (16, 16, 150)


def test_targets_are_judged_by_the_end_of_the_interval() -> None:
    keys = {"obs_error_steps": 2}
    for name, level, half in (
        ("chr", 0.71, 0.02),
        ("muv", 0.05, 0.02),
        ("muv_over_lru", 0.7, 0.1),
        ("p99_under_eviction_over_lru", 0.97, 0.05),
    ):
        keys |= {name: level, f"{name}_low": level - half, f"{name}_high": level + half}
    verdicts = {row[0]: (row[4], bool(row[5])) for row in kvmetrics.target_table(keys).rows}
    met, missed = ("met", False), ("missed", True)
    assert verdicts == {
        "chr": missed,
        "muv": met,
        "muv_over_lru": met,
        "p99_under_eviction_over_lru": missed,
        "obs_error_steps": missed,
    }


def test_run_without_eviction_has_no_such_latency() -> None:
    with pytest.raises(StateError, match="caches are too large"):
        kvmetrics._p99(replace(FIGURES, p99_evicting=float("nan")))


def test_rungs_of_the_sweep_are_those_of_the_estimate() -> None:
    from plumage.kv_metrics import BATCHES, CONTEXTS

    for ladder in batches.LADDERS:
        assert set(ladder.limits) <= set(BATCHES)
        assert all(upper == 2 * lower for lower, upper in pairwise(ladder.limits))
        assert ladder.label in CONTEXTS
        assert max(ladder.limits) <= ladder.clients
