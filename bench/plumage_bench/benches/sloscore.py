"""`sloscore`: requests that meet their objective when a queue orders by score instead of arrival (`flowControl.order`).

Local pools of two simulated engines, made from manifests that differ in `order` alone. Requests ask about documents
that do not all fit into the engines' caches. All have one objective, so `Deadline` serves them nearly in the order of
arrival (the time that it leaves for the engine changes a little). More requests come than the pool serves, so the order
also decides which ones get 429. `over_fcfs` compares the requests a second that met the objective. `p99_ratio` compares
the P99 of the time to first token of what was answered.

`choice_us` is the time that the queue takes for one choice by score among 1,000 requests, with so many entries in the
directory's mirror and 50 choices a second.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from plumage.directory.mirror.mirror import Mirror
from plumage.errors import ConfigurationError
from plumage.queueing import FairQueue, PromptCost
from plumage.queueing.slo_score import CANDIDATES
from plumage_bench.benches.overload import Window, completed, pool_of
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.local_pool import LocalPool
from plumage_bench.open_load import Answer, Tenant, play
from plumage_bench.pairs import paired_ratio
from plumage_bench.quantiles import quantile

__all__ = ["run"]

OBJECTIVE: Final = 4.0  # seconds to the first token
ORDERS: Final = ("Deadline", "SloScore")
PAIRS: Final = 5
LOADS, LOADS_QUICK = (1.5, 2.5, 3.5), (2.5,)  # of the rate of the queue by arrival
ABOUT: Final = 60.0  # requests a second, more than the pool serves
DOCUMENTS, DOCUMENT_WORDS, CACHE_BLOCKS = 160, 300, 4_000
QUESTION_WORDS, ANSWER_TOKENS = (5, 40), (4, 16)
ENTRIES: Final = (1_000, 1_000_000)  # of the directory
CHUNKS: Final = 40  # of each prompt, where a choice is timed
CHOICES, CHOICES_A_SECOND, UNTIMED = 600, 50, 100


@dataclass(frozen=True, slots=True)
class Cell:
    """What one order made of one load, per second of the window. hits: share of the prompts' tokens that were cached.
    ttft_p99: seconds, of the answered ones; None if there are none."""

    order: str
    load: float
    good: float
    answered: float
    hits: float
    ttft_p99: float | None
    statuses: Mapping[str, int]
    late: float


def spec(order: str) -> dict[str, Any]:
    """The manifest's `spec`."""
    return {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {
            "runtime": "Simulator",
            "simulator": {"device": {"preset": "GPU"}, "cacheBlocks": CACHE_BLOCKS},
        },
        "replicas": 2,
        "flowControl": {
            "order": order,
            "classes": [{"name": "default", "ttftMilliseconds": round(1000 * OBJECTIVE)}],
        },
    }


def run(context: Context) -> Report:
    """Options: pairs."""
    loads, window = (LOADS_QUICK, Window(6, 18)) if context.quick else (LOADS, Window(10, 30))
    pairs = context.count("pairs", PAIRS)
    with (
        context.progress("sloscore", 2 + 2 * pairs * len(loads)) as advance,
        ExitStack() as stack,
    ):
        times = {entries: choice_time(entries, context.seed) for entries in ENTRIES}
        advance(1)
        pools = {order: stack.enter_context(pool_of(spec(order), order.lower())) for order in ORDERS}
        rate, _ = (_rate(pools[order], window, f"{context.seed} rate") for order in ORDERS)  # fills both pools' caches
        advance(1)
        cells: list[Cell] = []
        for load in loads:
            for pair in range(pairs):
                for order in ORDERS if pair % 2 else reversed(ORDERS):
                    answers = _answers(pools[order], load * rate, window, f"{context.seed} {load} {pair}")
                    cells.append(summary(order, load, answers, window))
                    advance(1)
    return _report(rate, times, cells)


def choice_time(entries: int, seed: int) -> float:
    """Microseconds of one choice by score, from a queue of 1,000 requests, beside a mirror with so many entries."""
    rng = random.Random(seed)
    mirror = Mirror()
    chains = [[rng.getrandbits(64) for _ in range(CHUNKS)] for _ in range(max(1, entries // CHUNKS))]
    for number, chain in enumerate(chains):
        mirror.apply(number % 4, [(chunk, 1, 64 * (depth + 1)) for depth, chunk in enumerate(chain)])
    queue: FairQueue[int] = FairQueue({"default": 1.0})
    costs = [PromptCost(64.0 * CHUNKS + 100, 64.0 * CHUNKS, rng.choice(chains)) for _ in range(1_000)]
    for number in range(len(costs)):
        queue.add(number, "default", "", 64.0 * CHUNKS, 60.0 + number / 1_000, 0.0)
    now = 0.0

    def compute(item: int) -> float:
        return costs[item].on((0, 2), mirror.match, now)

    took = 0.0
    for number in range(CHOICES):
        now = number / CHOICES_A_SECOND
        began = time.perf_counter()
        taken, _ = queue.next(now, compute)
        took += time.perf_counter() - began if number >= UNTIMED else 0.0
        queue.add(taken, "default", "", 64.0 * CHUNKS, now + 60.0, now)
    return 1e6 * took / (CHOICES - UNTIMED)


def _rate(made: LocalPool, window: Window, seed: str) -> float:
    """Answers that end in a second of the window while more come than end."""
    ended = [one for one in _answers(made, ABOUT, window, seed) if one.status == 200 and one.ended is not None]
    return sum(window.start <= (one.ended or 0.0) < window.end for one in ended) / (window.end - window.start)


def _answers(made: LocalPool, rate: float, window: Window, seed: str) -> list[Answer]:
    tenant = Tenant("all", rate, QUESTION_WORDS, ANSWER_TOKENS, documents=DOCUMENTS, document_words=DOCUMENT_WORDS)
    return asyncio.run(play(f"http://127.0.0.1:{made.port}", [tenant], window.end, seed, OBJECTIVE + 6))


def summary(order: str, load: float, answers: Sequence[Answer], window: Window) -> Cell:
    """Sums up what was sent in the window."""
    counted, seconds = window.of(answers), window.end - window.start
    complete, times = completed(counted)
    return Cell(
        order,
        load,
        good=sum(wait <= OBJECTIVE for wait in times) / seconds,
        answered=len(complete) / seconds,
        hits=sum(one.cached for one in complete) / max(1, sum(one.prompt for one in complete)),
        ttft_p99=quantile(times, 0.99) if times else None,
        statuses=Counter(str(one.status) for one in counted),
        late=max((one.late for one in answers), default=0.0),
    )


def _report(rate: float, times: Mapping[int, float], cells: Sequence[Cell]) -> Report:
    loads = sorted({one.load for one in cells})
    by_arrival, by_score = (
        {load: [one for one in cells if (one.order, one.load) == (order, load)] for load in loads} for order in ORDERS
    )
    first = LOADS_QUICK[0]
    if any(not one.good for one in cells):
        raise ConfigurationError("in a cell no request met the objective: is the machine busy with other work?")
    ratios = {
        load: paired_ratio([one.good for one in by_score[load]], [one.good for one in by_arrival[load]])
        for load in by_score
    }
    p99 = paired_ratio(
        [one.ttft_p99 or 0.0 for one in by_score[first]], [one.ttft_p99 or 0.0 for one in by_arrival[first]]
    )
    keys: dict[str, Figure] = {
        **interval_keys("over_fcfs", ratios[first]),
        **interval_keys("p99_ratio", p99),
        **{f"over_fcfs_at_{load:g}": ratios[load].ratio for load in ratios if load != first},
        **{f"choice_us_{entries}": round(time_, 1) for entries, time_ in times.items()},
        "late_ms": 1000 * max(one.late for one in cells),
    }
    rows = [(one.load, one.order, round(one.good, 2), round(one.answered, 2), round(one.hits, 3),
             "-" if one.ttft_p99 is None else round(one.ttft_p99, 2),
             ", ".join(f"{status} {count}" for status, count in sorted(one.statuses.items())))
            for one in sorted(cells, key=lambda one: (one.load, one.order))]  # fmt: skip
    table = ResultTable(
        f"Requests a second; by arrival the pool serves {rate:.1f}; the objective is {OBJECTIVE:g} s to first token",
        ("load ÷ rate", "order", "met the objective", "answered", "cached", "P99 TTFT, s", "statuses"),
        rows,
        "SloScore ÷ Deadline, in pairs: " + "; ".join(f"at {load:g}: {ratio}" for load, ratio in ratios.items())
        + f". A choice among 1,000 requests, of which {2 * CANDIDATES} are scored, takes "
        + " and ".join(f"{time_:.0f} µs beside {entries:,} entries" for entries, time_ in times.items()) + ".",
    )  # fmt: skip
    data = {"rate": rate, "cells": [asdict(one) | {"statuses": dict(one.statuses)} for one in cells]}
    return Report(keys, (table,), lambda figure: _plot(figure, by_arrival, by_score), data)


def _plot(figure: Any, by_arrival: Mapping[float, Sequence[Cell]], by_score: Mapping[float, Sequence[Cell]]) -> None:
    axes = figure.subplots()
    for label, cells in (("by arrival", by_arrival), ("by score", by_score)):
        points = [(load, one.good) for load, of_load in cells.items() for one in of_load]
        axes.plot([load for load, _ in points], [good for _, good in points], "o", label=label)
    axes.set(xlabel="load ÷ what the pool serves", ylabel="requests a second that met the objective", ylim=(0, None))
    axes.legend()
