"""`batching`: compares batching policies on one simulated engine, by load and device, two rules of credit, and
the printed forms of both learners.

One engine runs in virtual time. `product` has the default manifest's policy and ageing bound; the others have no
ageing. The figure is output tokens a second from the first arrival to the last token. The loads are FEATHER's (§5.1: 5
groups of 5,000 shared tokens, 100 requests/s, 200 output tokens, batches up to 500) and others where the order can gain
less or nothing. `credit=Trial` is Plumage's rule. With `credit=Step`, the paper's, the next step judges each decision.
With it the bandit forgets nothing and tries unseen actions first, as in the paper. Q-learning uses r + γ·max Q, with a
decay of ε that suits episodes of one step. Both are asked only where a STOP can pay. `printed` is `form: Paper`: asked
at every candidate, with the paper's states. `predictive_over_order` is the smallest gain of all loads of the predicting
stop policy over the tree's order, and `predictive_gain` the largest, each paired by seed. `product_over_order` and
`product_gain` are the same of `product`. A sorted running batch helps only on the cpu model. A modelled
device shows whether a policy learns, not how large FEATHER's gain is. `sweep=1` adds FEATHER's ranges (`sweep`), and
`ahead=1` loads in which an order must look ahead, with known groups as a contender (`ahead`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from plumage_bench.benches.batching.ahead import ahead_table
from plumage_bench.benches.batching.engine import CONTENDERS, LOADS, throughput
from plumage_bench.benches.batching.sweep import sweep_tables
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys, least_keys
from plumage_bench.pairs import LEAST_PAIRS, paired_ratio
from plumage_bench.parallel import in_parallel

__all__ = ["run"]

_QUICK = (LOADS[0], LOADS[-1])
_STEP = tuple(one.label for one in CONTENDERS if one.options.get("credit") == "Step")
_PRINTED = tuple(one.label for one in CONTENDERS if one.fields)


def run(context: Context) -> Report:
    sweep, ahead = context.switch("sweep"), context.switch("ahead")  # first: an invalid option fails before the run
    seeds = [context.seed + offset for offset in range(2 if context.quick else LEAST_PAIRS)]
    loads = _QUICK if context.quick else LOADS
    calls = [(load, contender, seed) for load in loads for contender in CONTENDERS for seed in seeds]
    with context.progress("batching", len(calls)) as advance:
        found = iter(in_parallel(throughput, calls, advance))
    rates = {load.name: {one.label: [next(found) for _ in seeds] for one in CONTENDERS} for load in loads}
    tables = [_table(rates, seeds)]
    if sweep:
        tables += sweep_tables(context, seeds)
    if ahead:
        tables.append(ahead_table(context, seeds))
    return Report(_keys(rates), tables, lambda figure: _plot(figure, rates), {"rates": rates})


def _keys(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Figure]:
    """For each learner the smallest gain over FCFS of all loads; with the step's credit, and as printed, the better of
    its variants counts in each load. Also the largest gain that a sorted running batch adds to the tree's order."""
    means = [{label: mean(values) for label, values in row.items()} for row in rates.values()]
    over_order = [paired_ratio(row["predictive"], row["tree order"]) for row in rates.values()]
    product = [paired_ratio(row["product"], row["tree order"]) for row in rates.values()]
    return {
        **least_keys("product_over_order", product),
        **interval_keys("product_gain", max(product, key=lambda one: one.ratio)),
        **least_keys("predictive_over_order", over_order),
        **interval_keys("predictive_gain", max(over_order, key=lambda one: one.ratio)),
        "bandit_trial": min(row["bandit, trial"] / row["FCFS"] for row in means),
        "bandit_step": min(_best(row, "bandit", _STEP) / row["FCFS"] for row in means),
        "bandit_printed": min(_best(row, "bandit", _PRINTED) / row["FCFS"] for row in means),
        "q_trial": min(row["Q, trial"] / row["FCFS"] for row in means),
        "q_step": min(_best(row, "Q", _STEP) / row["FCFS"] for row in means),
        "q_printed": min(_best(row, "Q", _PRINTED) / row["FCFS"] for row in means),
        "sorted_over_tree": max(row["tree order, sorted batch"] / row["tree order"] for row in means),
    }


def _best(row: Mapping[str, float], policy: str, variants: Sequence[str]) -> float:
    return max(row[label] for label in variants if label.startswith(policy))


def _table(rates: Mapping[str, Mapping[str, Sequence[float]]], seeds: Sequence[int]) -> ResultTable:
    rows: list[list[int | float | str]] = [
        [name, *(round(mean(values), 1) for values in row.values())] for name, row in rates.items()
    ]
    return ResultTable(
        "Output tokens a second on one modelled device",
        ("load", *(one.label for one in CONTENDERS)),
        rows,
        f"Means of seeds {', '.join(map(str, seeds))}. Ageing only in product. The device is a model.",
    )


def _plot(figure: Any, rates: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    axes = figure.subplots()
    width = 0.9 / len(CONTENDERS)
    for index, contender in enumerate(CONTENDERS):
        values = [mean(row[contender.label]) / mean(row["FCFS"]) for row in rates.values()]
        axes.bar([place + index * width for place in range(len(rates))], values, width, label=contender.label)
    axes.set(xticks=[place + 0.4 for place in range(len(rates))], xticklabels=list(rates), ylabel="÷ FCFS")
    axes.legend(fontsize="small")
