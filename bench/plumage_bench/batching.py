"""`batching`: what batching policies make of one simulated engine, by load and device; credits compared.

One engine in virtual time, ageing off, output tokens a second from the first arrival to the last token. FEATHER's load
(§5.1: 5 groups of 5,000 shared tokens, 100 requests/s, 200 output tokens, batches up to 500) and three in which there
is less or nothing to win. `credit=Trial` is ours, `credit=Step` the paper's: each decision is judged by the next step.
With it the bandit forgets nothing and has the paper's unseen-first rule; Q-learning has r + γ·max Q, and an ε whose
decay is chosen for episodes of one step. Sorting the running batch helps on the cpu model alone. A modelled device
shows that a policy learns, never FEATHER's gain. `--sweep` adds FEATHER's ranges (`batching_sweep`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.parallel import in_parallel
from plumage_engine.simulator.engine.device import PRESETS
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = [
    "BLOCK",
    "CONTENDERS",
    "LOADS",
    "TAIL_BLOCKS",
    "Contender",
    "Load",
    "Played",
    "play",
    "requests",
    "run",
    "throughput",
]

BLOCK, CACHE_BLOCKS, BUDGET = 16, 200_000, 32_768
NO_AGEING = 86_400  # seconds; the most that a manifest can say
TAIL_BLOCKS = 6  # of each request's own


@dataclass(frozen=True, slots=True)
class Load:
    """Equal `groups` with `prefix` shared tokens, in random order; Poisson arrivals, `rate` a second. `batch`: most
    running requests. `levels`: of the prefix tree; two neighbours on one level share all levels above it. `steps`:
    rates that follow each other instead of `rate`, each for its part of the requests."""

    name: str
    device: str
    count: int
    groups: int
    prefix: int = 5_000
    rate: float = 100.0
    output: int = 200
    batch: int = 500
    levels: int = 1
    steps: tuple[float, ...] = ()
    cache_blocks: int = CACHE_BLOCKS

    def rate_at(self, number: int) -> float:
        """Requests a second when this one comes."""
        return self.steps[number * len(self.steps) // self.count] if self.steps else self.rate

    def prefix_blocks(self, group: int) -> list[int]:
        """Names of the group's shared blocks."""
        blocks, last = self.prefix // BLOCK, self.levels - 1
        depths = [block * self.levels // blocks for block in range(blocks)]
        return [((depth << 16) + (group >> last - depth) + 1 << 20) + block for block, depth in enumerate(depths)]


@dataclass(frozen=True, slots=True)
class Contender:
    """`ordered`: the running batch is sorted by prefix."""

    label: str
    queue: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ordered: bool = False


LOADS = (
    Load("gpu, 5 groups", "gpu", 3_000, 5),
    Load("gpu, 5 groups, longer", "gpu", 10_000, 5),
    Load("gpu, pairs", "gpu", 3_000, 1_500, prefix=500),
    Load("gpu, no sharing", "gpu", 600, 600, batch=64),
    Load("cpu, 20 groups", "cpu", 2_000, 20, prefix=2_000, rate=20.0, output=100, batch=64),
)
_QUICK = (LOADS[0], LOADS[4])
CONTENDERS = (
    Contender("FCFS", "Fcfs"),
    Contender("tree order", "ChtOrder"),
    Contender("tree order, sorted batch", "ChtOrder", ordered=True),
    Contender("heuristic", "Heuristic"),
    Contender("bandit, trial", "Bandit"),
    Contender("bandit, step", "Bandit", {"credit": "Step", "forgetting": "None", "exploration": 0.1}),
    Contender("bandit, step, c = 1", "Bandit", {"credit": "Step", "forgetting": "None", "exploration": 1.0}),
    Contender("Q, trial", "QLearning"),
    Contender("Q, step, ε × 0.999", "QLearning", {"credit": "Step", "decay": 0.999}),
    Contender("Q, step, ε × 0.9", "QLearning", {"credit": "Step", "decay": 0.9}),
)
_STEP = tuple(one.label for one in CONTENDERS if one.options.get("credit") == "Step")


def requests(load: Load, seed: int) -> list[SimRequest]:
    """In order of arrival."""
    rng, now, made = random.Random(f"batching {load.name} {seed}"), 0.0, []
    groups = [number % load.groups for number in range(load.count)]
    rng.shuffle(groups)
    for number, group in enumerate(groups):
        now += rng.expovariate(load.rate_at(number))
        hashes = load.prefix_blocks(group)
        hashes += [(number + 1 << 40) + block for block in range(TAIL_BLOCKS)]
        made.append(SimRequest(number, BLOCK * len(hashes) + 1, hashes, load.output, now, group=group))
    return made


@dataclass(frozen=True, slots=True)
class Played:
    """Output tokens a second over the whole load; mean seconds between two tokens of an answer; mean size of the
    running batch over the time that anything ran."""

    throughput: float
    between: float
    batch: float


def throughput(load: Load, contender: Contender, seed: int) -> float:
    """Output tokens a second over the whole load."""
    return play(load, contender, seed).throughput


def ours_of(load: Load, contender: Contender) -> Ours:
    """The manifest of an engine under that load. Ageing is out of reach, so that orders are compared."""
    feather = {"policy": contender.queue, "maxWaitSeconds": NO_AGEING, "orderBatch": contender.ordered}
    return Ours(
        {
            "engine.simulator.blockSize": BLOCK,
            "engine.simulator.cacheBlocks": load.cache_blocks,
            "engine.simulator.maxNumSeqs": load.batch,
            "engine.simulator.maxBatchedTokens": BUDGET,
            "engine.eviction.policy": "Lru",
            "engine.batchLimit": "Static",
            **{f"engine.feather.{name}": value for name, value in feather.items()},
        }
    )


def settings_of(load: Load, contender: Contender) -> EngineSettings:
    """Of the engine: the manifest's, and the contender's own options of a policy."""
    made = ours_of(load, contender).engine(PRESETS[load.device])
    return replace(made, queue_options={**made.queue_options, **contender.options})


def play(load: Load, contender: Contender, seed: int) -> Played:
    """Serve the load whole."""
    engine, now = SimEngine(settings_of(load, contender), rng=random.Random(f"policy {seed}")), 0.0
    left = list(reversed(requests(load, seed)))
    busy = decoded = waited = batched = 0.0
    while left or len(engine):
        while left and left[-1].arrival <= now:
            engine.submit(left.pop(), now)
        report = engine.step(now)
        if report is None:
            now = left[-1].arrival
        else:
            now += report.seconds
            busy += report.seconds
            batched += report.seconds * engine.load().running
            waited += report.seconds * report.decode_tokens
            decoded += report.decode_tokens
        engine.end_step(now)
    return Played(load.count * load.output / now, waited / decoded if decoded else 0.0, batched / busy)


def run(context: Context) -> Report:
    sweep = context.switch("sweep")  # first: a mistake in it must not cost the whole run
    seeds = [context.seed + offset for offset in range(2 if context.quick else 3)]
    loads = _QUICK if context.quick else LOADS
    calls = [(load, contender, seed) for load in loads for contender in CONTENDERS for seed in seeds]
    with context.progress("batching", len(calls)) as advance:
        found = iter(in_parallel(throughput, calls, advance))
    rates = {load.name: {one.label: [next(found) for _ in seeds] for one in CONTENDERS} for load in loads}
    tables = [_table(rates, seeds)]
    if sweep:
        from plumage_bench.batching_sweep import sweep_tables  # which builds on this module

        tables += sweep_tables(context, seeds)
    return Report(_keys(rates), tables, lambda figure: _plot(figure, rates), {"rates": rates})


def _keys(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The least over loads of each learner against FCFS; of the step's variants the better one in each load. The most
    that sorting the running batch adds to the tree's order."""
    means = [{label: mean(values) for label, values in row.items()} for row in rates.values()]
    return {
        "bandit_trial": min(row["bandit, trial"] / row["FCFS"] for row in means),
        "bandit_step": min(_best(row, "bandit") / row["FCFS"] for row in means),
        "q_trial": min(row["Q, trial"] / row["FCFS"] for row in means),
        "q_step": min(_best(row, "Q") / row["FCFS"] for row in means),
        "sorted_over_tree": max(row["tree order, sorted batch"] / row["tree order"] for row in means),
    }


def _best(row: Mapping[str, float], policy: str) -> float:
    return max(row[label] for label in _STEP if label.startswith(policy))


def _table(rates: Mapping[str, Mapping[str, Sequence[float]]], seeds: Sequence[int]) -> ResultTable:
    rows: list[list[int | float | str]] = [
        [name, *(round(mean(values), 1) for values in row.values())] for name, row in rates.items()
    ]
    return ResultTable(
        "Output tokens a second on one modelled device",
        ("load", *(one.label for one in CONTENDERS)),
        rows,
        f"Means of seeds {', '.join(map(str, seeds))}; ageing off. Not FEATHER's gain: the device is a model.",
    )


def _plot(figure: Any, rates: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    axes = figure.subplots()
    width = 0.9 / len(CONTENDERS)
    for index, contender in enumerate(CONTENDERS):
        values = [mean(row[contender.label]) / mean(row["FCFS"]) for row in rates.values()]
        axes.bar([place + index * width for place in range(len(rates))], values, width, label=contender.label)
    axes.set(xticks=[place + 0.4 for place in range(len(rates))], xticklabels=list(rates), ylabel="÷ FCFS")
    axes.legend(fontsize="small")
