"""`overload`: how many requests meet their objective of the time to first token when more come than a pool can serve.

Local pools of two simulated engines, made from manifests that differ in one place:

- none: the default manifest. All requests wait in the engines;
- limit: `router.limits.maxInFlight` is what the pool can serve in the time of the objective, by its measured rate. More
  requests get 503 at once. No manifest can know this number beforehand;
- queue: `flowControl` with a class that has the objective.

Prompts share nothing. The pool's rate is measured first, under more load than it can serve. Goodput is the
requests a second that met the objective and were answered completely, among those sent in the window. `goodput` is
`queue` at the highest load ÷ the best of all other cells of the sweep, which is measured again beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.local_pool import LocalPool, local_pool
from plumage_bench.open_load import Answer, Tenant, play
from plumage_bench.pairs import paired_ratio
from plumage_bench.quantiles import quantile

__all__ = ["Window", "completed", "pool_of", "run"]

OBJECTIVE: Final = 2.0  # seconds to the first token
LOADS, LOADS_QUICK = (0.8, 1.0, 1.5, 2.0, 3.0), (1.0, 3.0)  # of the pool's rate
PAIRS, PAIRS_QUICK = 5, 2
HIGHEST: Final = 3.0
POLICIES: Final = ("none", "limit", "queue")
ABOUT: Final = 24.0  # requests a second, more than the pool serves (about 19)
PROMPT_WORDS, ANSWER_TOKENS = (50, 400), (10, 40)


@dataclass(frozen=True, slots=True)
class Window:
    """Requests sent in [start, end) count, in seconds since the load began."""

    start: float
    end: float

    def of(self, answers: Sequence[Answer]) -> list[Answer]:
        return [one for one in answers if self.start <= one.sent < self.end]


@dataclass(frozen=True, slots=True)
class Cell:
    """What one policy made of one load, per second of the window. ttft_p95: of the answered ones; None if there are
    none. statuses: of all; `None` is for what had no end in time. late: seconds, the longest that a
    request was sent after its time."""

    policy: str
    load: float
    good: float
    answered: float
    ttft_p95: float | None
    statuses: Mapping[str, int]
    late: float


def spec(policy: str, rate: float) -> dict[str, Any]:
    """The manifest's `spec`. rate: requests a second that the pool can serve."""
    made: dict[str, Any] = {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}}},
        "replicas": 2,
    }
    if policy == "limit":
        return {**made, "router": {"limits": {"maxInFlight": round(rate * OBJECTIVE)}}}
    if policy == "queue":
        objective = {"name": "default", "ttftMilliseconds": round(1000 * OBJECTIVE)}
        return {**made, "flowControl": {"classes": [objective]}}
    return made


def run(context: Context) -> Report:
    """Options: pairs."""
    loads, window = (LOADS_QUICK, Window(4, 12)) if context.quick else (LOADS, Window(8, 28))
    pairs = context.count("pairs", PAIRS_QUICK if context.quick else PAIRS)
    with context.progress("overload", 1 + len(POLICIES) * len(loads) + 2 * pairs) as advance:
        with pool_of(spec("none", 0.0), "none") as plain:
            rate = _rate(plain, Window(8, 28), f"{context.seed} rate")
        advance(1)
        with ExitStack() as stack:
            pools = {policy: stack.enter_context(pool_of(spec(policy, rate), policy)) for policy in POLICIES}

            def cell(policy: str, load: float, seed: str) -> Cell:
                answers = _answers(pools[policy], load * rate, window, f"{context.seed} {load} {seed}")
                advance(1)
                return summary(policy, load, answers, window)

            sweep = [cell(policy, load, "sweep") for load in loads for policy in POLICIES]
            others = [one for one in sweep if (one.policy, one.load) != ("queue", HIGHEST)]
            best = max(others, key=lambda one: one.good)
            ours, against = _pairs(cell, best, pairs)
    return _report(rate, sweep, best, ours, against)


@contextmanager
def pool_of(spec: Mapping[str, Any], name: str) -> Iterator[LocalPool]:
    """A local pool of the manifest's `spec`."""
    with tempfile.TemporaryDirectory(prefix="plm-") as runtime, local_pool(Path(runtime), spec, name) as made:
        yield made


def _pairs(cell: Callable[[str, float, str], Cell], best: Cell, pairs: int) -> tuple[list[Cell], list[Cell]]:
    """Both cells again, side by side with the same requests where their loads are equal. The order changes."""
    ours, against = [], []
    for pair in range(pairs):
        one = (lambda pair=pair: ours.append(cell("queue", HIGHEST, f"pair {pair}")),
               lambda pair=pair: against.append(cell(best.policy, best.load, f"pair {pair}")))  # fmt: skip
        for measure in one if pair % 2 else reversed(one):
            measure()
    return ours, against


def _rate(plain: LocalPool, window: Window, seed: str) -> float:
    """Answers that end in a second of the window while more come than end."""
    answers = _answers(plain, ABOUT, window, seed)
    ended = [one for one in answers if one.status == 200 and one.ended and window.start <= one.ended < window.end]
    return len(ended) / (window.end - window.start)


def _answers(made: LocalPool, rate: float, window: Window, seed: str) -> list[Answer]:
    tenant = Tenant("all", rate, PROMPT_WORDS, ANSWER_TOKENS)
    after = OBJECTIVE + 6  # beside many prompts, an answer takes seconds after its first token
    return asyncio.run(play(f"http://127.0.0.1:{made.port}", [tenant], window.end, seed, after))


def completed(answers: Sequence[Answer]) -> tuple[list[Answer], list[float]]:
    """The complete answers, and their times to first token in seconds."""
    complete = [one for one in answers if one.status == 200 and one.answered]
    return complete, [one.first - one.sent for one in complete if one.first is not None]


def summary(policy: str, load: float, answers: Sequence[Answer], window: Window) -> Cell:
    """Sums up what was sent in the window."""
    counted, seconds = window.of(answers), window.end - window.start
    complete, times = completed(counted)
    return Cell(
        policy,
        load,
        good=sum(time <= OBJECTIVE for time in times) / seconds,
        answered=len(complete) / seconds,
        ttft_p95=quantile(times, 0.95) if times else None,
        statuses=Counter(str(one.status) for one in counted),
        late=max(one.late for one in answers),
    )


def _report(rate: float, sweep: Sequence[Cell], best: Cell, ours: Sequence[Cell], against: Sequence[Cell]) -> Report:
    ratio = paired_ratio([one.good for one in ours], [one.good for one in against])
    at_highest = {one.policy: one.good for one in sweep if one.load == HIGHEST}
    keys: dict[str, Figure] = {
        **interval_keys("goodput", ratio),
        **{f"{policy}_over_rate": at_highest[policy] / rate for policy in POLICIES},
        "best": f"{best.policy} at {best.load:g}",
        "late_ms": 1000 * max(one.late for one in (*sweep, *ours, *against)),
    }
    rows = [
        (one.policy, one.load, round(one.good, 2), round(one.answered, 2),
         "-" if one.ttft_p95 is None else round(one.ttft_p95, 2),
         ", ".join(f"{status} {count}" for status, count in sorted(one.statuses.items())))
        for one in sorted(sweep, key=lambda one: (POLICIES.index(one.policy), one.load))
    ]  # fmt: skip
    table = ResultTable(
        f"Requests a second; the pool serves {rate:.1f}, the objective is {OBJECTIVE:g} s to the first token",
        ("policy", "load ÷ rate", "met the objective", "answered", "P95 TTFT, s", "statuses"),
        rows,
        f"queue at {HIGHEST:g} ÷ {best.policy} at {best.load:g}, the best other cell, again in pairs: {ratio}. "
        "`None`: no end in 8 s after the load.",
    )
    data = {"rate": rate, "sweep": [_plain(one) for one in sweep],
            "pairs": {"ours": [_plain(one) for one in ours], "best": [_plain(one) for one in against]}}  # fmt: skip
    return Report(keys, (table,), lambda figure: _plot(figure, rate, sweep), data)


def _plain(one: Cell) -> dict[str, Any]:
    names = ("policy", "load", "good", "answered", "ttft_p95", "late")
    return {name: getattr(one, name) for name in names} | {"statuses": dict(one.statuses)}


def _plot(figure: Any, rate: float, sweep: Sequence[Cell]) -> None:
    axes = figure.subplots()
    for policy in POLICIES:
        mine = sorted((one.load, one.good) for one in sweep if one.policy == policy)
        axes.plot([load for load, _ in mine], [good for _, good in mine], marker="o", label=policy)
    axes.axhline(rate, linestyle="--", color="black", label="what the pool serves")
    axes.set(xlabel="load ÷ what the pool serves", ylabel="requests a second that met the objective", ylim=(0, None))
    axes.legend()
