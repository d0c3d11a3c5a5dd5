"""`batching ahead=1`: which group is next and when to switch, on one simulated engine.

Several levels of sharing, unequal answers, a step of the rate, a cache with room for few prefixes, unequal groups, and
mixtures of these. `oracle` knows the groups and makes batches of one; `DFS-W` sorts by the weight of branches.
`marginal` is an experiment (`baselines.batching.marginal`). Only `product` has an ageing bound that can be reached: the
default manifest's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Final

from plumage import defaults
from plumage_bench.baselines.batching import path
from plumage_bench.benches.batching.engine import BLOCK, TAIL_BLOCKS, Contender, Load, throughput
from plumage_bench.harness import Context, ResultTable
from plumage_bench.pairs import paired_ratio
from plumage_bench.parallel import in_parallel

__all__ = ["AHEAD", "COMPARED", "ahead_table"]

_CLOSED: Final = 1e6  # requests a second: all wait from the start


def _small(load: Load, prefixes: int) -> Load:
    """With room for that many prefixes beside a batch."""
    own = load.batch * (TAIL_BLOCKS + max(load.output, *load.outputs or (0,)) // BLOCK + 2)
    return replace(load, cache_blocks=prefixes * load.prefix // BLOCK + own)


_CPU = Load("cpu, 8 groups", "cpu", 256, 8, prefix=4_096, rate=_CLOSED, output=64, batch=16)
_GPU = Load("gpu, 8 groups", "gpu", 1_024, 8, prefix=4_096, rate=_CLOSED, output=128, batch=64)
_BOTH = (_CPU, _GPU)
AHEAD: Final = (
    *_BOTH,
    *(replace(one, name=f"{one.name}, two levels", levels=2) for one in _BOTH),
    *(replace(one, name=f"{one.name}, three levels", levels=3) for one in _BOTH),
    *(replace(one, name=f"{one.name}, unequal answers", outputs=(one.output // 4, 2 * one.output)) for one in _BOTH),
    *(
        replace(one, name=f"{one.name}, three levels, unequal answers", levels=3,
                outputs=(one.output // 4, 2 * one.output))
        for one in _BOTH
    ),
    replace(_CPU, name="cpu, 8 groups, step", count=256, steps=(2.0, 16.0)),
    replace(_GPU, name="gpu, 8 groups, step", steps=(4.0, 32.0)),
    replace(_CPU, name="cpu, 8 groups, step, three levels", count=256, steps=(2.0, 16.0), levels=3),
    _small(replace(_CPU, name="cpu, 20 groups, room for 4", count=240, groups=20), 4),
    _small(replace(_GPU, name="gpu, 40 groups, room for 8", groups=40), 8),
    _small(replace(_CPU, name="cpu, 20 groups, room for 4, open", count=240, groups=20, rate=8.0), 4),
    replace(_CPU, name="cpu, 64 small groups, three levels", groups=64, levels=3),
    replace(_CPU, name="cpu, 8 unequal groups, three levels", levels=3, skew=1.0),
    replace(_CPU, name="cpu, 8 unequal groups, unequal answers", skew=1.0, outputs=(16, 128)),
    replace(_CPU, name="cpu, 8 groups, open, unequal answers", rate=8.0, outputs=(16, 128)),
    replace(_GPU, name="gpu, 8 groups, open, unequal answers", rate=20.0, outputs=(32, 256)),
)  # fmt: skip
COMPARED: Final = (
    Contender("FCFS", "Fcfs"),
    Contender("product", defaults.FEATHER_POLICY, ages=True),
    Contender("order", "ChtOrder"),
    Contender("heuristic", "Heuristic"),
    Contender("predictive", "Predictive"),
    Contender("marginal", "Fcfs", lab=path("Marginal")),
    Contender("oracle", "Fcfs", lab=path("Oracle")),
    Contender("DFS-W", "Fcfs", lab=path("DfsWeight")),
    Contender("LPM", "Fcfs", lab=path("Lpm")),
)


def ahead_table(context: Context, seeds: Sequence[int]) -> ResultTable:
    """A row for each load: tokens a second, and the product's and the order's part of the better of oracle and
    DFS-W."""
    calls = [(load, one, seed) for load in AHEAD for one in COMPARED for seed in seeds]
    with context.progress("batching: orders that look ahead", len(calls)) as advance:
        found = iter(in_parallel(throughput, calls, advance))
    rows: list[list[float | str]] = []
    for load in AHEAD:
        by = {one.label: [next(found) for _ in seeds] for one in COMPARED}
        best = max((by["oracle"], by["DFS-W"]), key=mean)
        over = [str(paired_ratio(by[label], best)) for label in ("product", "order")]
        rows.append([load.name, *(round(mean(values), 1) for values in by.values()), *over])
    heads = ("load", *(one.label for one in COMPARED), "product ÷ better of both", "order ÷ better of both")
    return ResultTable("Orders that look ahead: output tokens a second", heads, rows, "On a modelled device.")
