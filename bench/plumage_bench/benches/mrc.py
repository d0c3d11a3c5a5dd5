"""`mrc`: the error of a sampled miss-ratio curve against the exact one, and its cost.

Seeded workloads are played into a sampler and into an exact count (a sampler that keeps every key, which tests compare
with simulated LRU caches). The error is the mean difference of the hit ratio over forty cache sizes, from 1/40 of the
distinct blocks to all of them. Names of blocks are scrambled first: real keys are hashes, and consecutive names would
give a better sample than hashes.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import mean
from time import thread_time
from typing import Any

from plumage.mrc import MissRatioCurve, ReuseSampler
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.workloads import (
    FEWSHOT_SUITES,
    GspShape,
    LongdocShape,
    MultiturnShape,
    Prompt,
    conversations,
    fewshot_prompts,
    gsp_prompts,
    longdoc_prompts,
)

__all__ = ["run"]

SAMPLES = (1024, 4096, 8192)
DEFAULT = 4096
LARGEST = 1 << 22
SIZES = 40
SEEDS, QUICK_SEEDS = 4, 2
ENDLESS = 300_000  # new keys, to measure the memory of a sampler after many keys
Accesses = list[list[int]]


def gsp(seed: int) -> Sequence[Prompt]:
    return gsp_prompts(GspShape(groups=64), seed)


def longdoc(seed: int) -> Sequence[Prompt]:
    return longdoc_prompts(LongdocShape(documents=256), seed)


def fewshot(seed: int) -> Sequence[Prompt]:
    return fewshot_prompts(FEWSHOT_SUITES["ceval"], seed)


def multiturn(seed: int) -> Sequence[Prompt]:
    """Rounds of many clients in random order; each client's rounds stay in order."""
    rng = random.Random(f"mrc {seed}")
    waiting = [list(reversed(rounds)) for rounds in conversations(MultiturnShape(clients=384), seed)]
    turns = [client for client, rounds in enumerate(waiting) for _ in rounds]
    rng.shuffle(turns)
    return [waiting[client].pop() for client in turns]


WORKLOADS: dict[str, Callable[[int], Sequence[Prompt]]] = {
    "gsp": gsp, "multiturn": multiturn, "longdoc": longdoc, "fewshot": fewshot,
}  # fmt: skip


def skewed(seed: int) -> Accesses:
    """Independent keys by Zipf's law. It is the hardest case, because a few keys have most accesses."""
    rng = random.Random(f"mrc zipf {seed}")
    keys = [rng.getrandbits(64) for _ in range(60_000)]
    weights = list(accumulate(1.0 / (rank + 1) ** 0.9 for rank in range(len(keys))))
    return [rng.choices(keys, cum_weights=weights, k=100) for _ in range(3000)]


def hashed(prompts: Sequence[Prompt]) -> Accesses:
    names: dict[int, int] = {}
    return [[names.setdefault(block, _scrambled(block)) for block in prompt.blocks] for prompt in prompts]


def _scrambled(name: int) -> int:
    """The last step of splitmix64, which turns consecutive names into evenly distributed numbers."""
    mask = (1 << 64) - 1
    name = ((name ^ name >> 30) * 0xBF58476D1CE4E5B9) & mask
    name = ((name ^ name >> 27) * 0x94D049BB133111EB) & mask
    return name ^ name >> 31


@dataclass(slots=True)
class Outcome:
    """The results of one workload over its seeds. errors, worst, nanoseconds, rate: by sample size."""

    accesses: list[int] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    exact_nanoseconds: list[float] = field(default_factory=list)
    errors: dict[int, list[float]] = field(default_factory=lambda: {samples: [] for samples in SAMPLES})
    worst: dict[int, list[float]] = field(default_factory=lambda: {samples: [] for samples in SAMPLES})
    nanoseconds: dict[int, list[float]] = field(default_factory=lambda: {samples: [] for samples in SAMPLES})
    rate: dict[int, list[float]] = field(default_factory=lambda: {samples: [] for samples in SAMPLES})
    curves: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)

    def add(self, accesses: Accesses) -> None:
        """Play the accesses of one seed."""
        distinct = len({key for prompt in accesses for key in prompt})
        sizes = [distinct * step // SIZES for step in range(1, SIZES + 1)]
        exact, taken = play(ReuseSampler(samples=1 << 40, largest=1 << 30), accesses)
        self.accesses.append(sum(map(len, accesses)))
        self.distinct.append(distinct)
        self.exact_nanoseconds.append(taken)
        self._draw("exact", exact, sizes)
        for samples in SAMPLES:
            self._compare(samples, exact, sizes, accesses)

    def _compare(self, samples: int, exact: MissRatioCurve, sizes: list[int], accesses: Accesses) -> None:
        curve, taken = play(ReuseSampler(samples=samples, largest=LARGEST), accesses)
        errors = [abs(curve.hit_ratio(size) - exact.hit_ratio(size)) for size in sizes]
        self.errors[samples].append(mean(errors))
        self.worst[samples].append(max(errors))
        self.nanoseconds[samples].append(taken)
        self.rate[samples].append(curve.rate)
        self._draw(f"{samples} samples", curve, sizes)

    def _draw(self, name: str, curve: MissRatioCurve, sizes: list[int]) -> None:
        self.curves.setdefault(name, (sizes, [curve.miss_ratio(size) for size in sizes]))


def play(sampler: ReuseSampler, accesses: Accesses) -> tuple[MissRatioCurve, float]:
    """The curve, and this thread's nanoseconds for an access."""
    started = thread_time()
    for prompt in accesses:
        sampler.access_all(prompt)
    taken = thread_time() - started
    return sampler.curve(), taken / max(1, sum(map(len, accesses))) * 1e9


def memory(samples: int) -> int:
    """The peak memory, in bytes, of a sampler while it gets more new keys than it can keep."""
    rng = random.Random(f"mrc memory {samples}")
    gc.collect()
    tracemalloc.start()
    try:
        sampler = ReuseSampler(samples=samples, largest=LARGEST)
        for _ in range(ENDLESS // 100):
            sampler.access_all([rng.getrandbits(64) for _ in range(100)])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run(context: Context) -> Report:
    seeds = [context.seed + step for step in range(QUICK_SEEDS if context.quick else SEEDS)]
    outcomes = {name: Outcome() for name in (*WORKLOADS, "zipf")}
    with context.progress("playing workloads", len(outcomes) * len(seeds)) as advance:
        for name, seed in ((name, seed) for name in outcomes for seed in seeds):
            outcomes[name].add(skewed(seed) if name == "zipf" else hashed(WORKLOADS[name](seed)))
            advance(1)
    return _report(outcomes, {samples: memory(samples) for samples in SAMPLES}, len(seeds))


def _report(outcomes: dict[str, Outcome], held: dict[int, int], seeds: int) -> Report:
    columns = ("workload, samples", "accesses", "blocks", "rate", "mean error", "worst error", "ns", "ns exact")
    notes = f"Mean over {seeds} seeds; errors of the hit ratio over {SIZES} sizes; ns of this thread an access."
    sizes: list[list[str | float]] = [[f"{samples}", held[samples], held[samples] / samples] for samples in SAMPLES]
    return Report(
        keys={
            "mae": mean(error for outcome in outcomes.values() for error in outcome.errors[DEFAULT]),
            "ns_per_access": mean(taken for outcome in outcomes.values() for taken in outcome.nanoseconds[DEFAULT]),
            "bytes": held[DEFAULT],
        },
        tables=[
            ResultTable("Sampled against exact miss-ratio curves", columns, list(_rows(outcomes)), notes),
            ResultTable("Memory, at its peak", ("samples", "bytes", "bytes a sample"), sizes),
        ],
        plot=lambda figure: _plot(figure, outcomes),
    )


def _rows(outcomes: dict[str, Outcome]) -> Iterator[list[float | str]]:
    for name, outcome in outcomes.items():
        for samples in SAMPLES:
            yield [
                f"{name}, {samples}",
                round(mean(outcome.accesses)),
                round(mean(outcome.distinct)),
                mean(outcome.rate[samples]),
                mean(outcome.errors[samples]),
                max(outcome.worst[samples]),
                mean(outcome.nanoseconds[samples]),
                mean(outcome.exact_nanoseconds),
            ]


def _plot(figure: Any, outcomes: dict[str, Outcome]) -> None:
    for axis, (name, outcome) in zip(figure.subplots(2, 3).flat, outcomes.items(), strict=False):
        for label, (sizes, misses) in outcome.curves.items():
            axis.plot(sizes, misses, label=label, linewidth=2 if label == "exact" else 1)
        axis.set(title=name, xlabel="blocks", ylabel="miss ratio", ylim=(0, 1))
        axis.legend(fontsize=7)
