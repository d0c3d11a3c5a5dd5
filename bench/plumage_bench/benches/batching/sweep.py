"""FEATHER's ranges (§5.2) for `batching --sweep`: one parameter varies, the others stay at 5 groups × 5,000 tokens, 100
requests/s, 200 output tokens, batches up to 500.

The paper's figures are tokens a second, the time between tokens and the batch size. Its chunk sizes are in `bench cht`.
A cache for a fifth of the prefixes also has room for the own blocks of a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from plumage_bench.benches.batching.engine import BLOCK, CONTENDERS, LOADS, TAIL_BLOCKS, Load, Played, play
from plumage_bench.harness import Context, ResultTable
from plumage_bench.parallel import in_parallel

__all__ = ["COMPARED", "sweep_tables", "sweeps"]

COMPARED = tuple(one for one in CONTENDERS if one.label in ("FCFS", "tree order", "bandit, trial"))
_STRANGERS = 600  # requests that share nothing


def sweeps() -> Mapping[str, Sequence[tuple[str, Load]]]:
    """Labelled loads by parameter."""
    base = LOADS[0]  # enough requests for learners
    return {
        "requests a second": [(f"{rate}", replace(base, rate=float(rate))) for rate in (5, 20, 50, 100)],
        "a rate in steps": [
            ("5, 10, 20", replace(base, steps=(5.0, 10.0, 20.0))),
            ("5, 10, 20, with 1,000 output tokens", replace(base, steps=(5.0, 10.0, 20.0), output=1_000)),
        ],
        "groups": [(f"{groups}", replace(base, groups=groups)) for groups in (1, 5, 20, 50, 100)],
        "groups, a fifth of whose prefixes fit": [(f"{groups}", _tight(base, groups)) for groups in (20, 100)],
        "output tokens": [(f"{tokens}", replace(base, output=tokens)) for tokens in (1, 10, 50, 100, 200)],
        "shared tokens": [(f"{tokens}", replace(base, prefix=tokens)) for tokens in (1_000, 2_000, 5_000, 10_000)],
        "levels of the tree, 8 groups": [(f"{count}", replace(base, groups=8, levels=count)) for count in (1, 2, 3, 4)],
        "no sharing": [
            (f"batch {size}", replace(base, count=_STRANGERS, groups=_STRANGERS, batch=size)) for size in (64, 500)
        ],
    }


def _tight(load: Load, groups: int) -> Load:
    own = load.batch * (TAIL_BLOCKS + load.output // BLOCK + 2)
    return replace(load, groups=groups, cache_blocks=groups * load.prefix // BLOCK // 5 + own)


def sweep_tables(context: Context, seeds: Sequence[int]) -> list[ResultTable]:
    """A table for each parameter."""
    settings = [(parameter, *setting) for parameter, loads in sweeps().items() for setting in loads]
    calls = [(load, contender, seed) for _, _, load in settings for contender in COMPARED for seed in seeds]
    with context.progress("batching: FEATHER's ranges", len(calls)) as advance:
        found = iter(in_parallel(play, calls, advance))
    rows: dict[str, list[list[float | str]]] = {}
    for parameter, label, _ in settings:
        played = [[next(found) for _ in seeds] for _ in COMPARED]
        rows.setdefault(parameter, []).append([label, *_figures(played)])
    return [_table(parameter, own) for parameter, own in rows.items()]


def _figures(played: Sequence[Sequence[Played]]) -> list[float]:
    """The figures of each contender, one figure after the other."""
    return [
        *(round(mean(one.throughput for one in own), 1) for own in played),
        *(round(1000 * mean(one.between for one in own), 2) for own in played),
        *(round(mean(one.batch for one in own), 1) for own in played),
    ]


def _table(parameter: str, rows: Sequence[Sequence[float | str]]) -> ResultTable:
    heads = [f"{what}, {one.label}" for what in ("tokens/s", "ms a token", "batch") for one in COMPARED]
    return ResultTable(f"Sweep: {parameter}", (parameter, *heads), rows, "On a modelled device.")
