"""The report of `vllm-feather`: a row for each policy and cell, the closing line's figures, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan, log, nan, sqrt
from statistics import fmean, median, variance
from typing import Any

from plumage_bench.benches.vllm_feather.cells import Cell
from plumage_bench.benches.vllm_feather.contenders import CEILINGS, PRODUCT, Contender
from plumage_bench.harness import Report, ResultTable
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio, students_t
from plumage_bench.quantiles import quantile
from plumage_bench.vllm.shapes import Shape

__all__ = ["COLUMNS", "Played", "cell_line", "latencies", "later", "raw", "report"]


@dataclass(frozen=True, slots=True)
class Played:
    """One run. tokens: answered. waits: seconds to each request's first token, in order of arrival. gaps: seconds
    between tokens. batch: mean number of running requests. stops: of the policy. converged: seconds of the device from
    a step of the rate until it was steady. after: tokens a second of the device's time from the step on."""

    tokens: int
    cpu: float
    wall: float
    waits: tuple[float, ...]
    gaps: tuple[float, ...]
    batch: float
    stops: int
    converged: float = nan
    after: float = nan

    @property
    def rate(self) -> float:
        """Tokens a second of the device's time."""
        return self.tokens / self.cpu


def cell_line(cell: Cell, runs: Mapping[str, Sequence[Played]]) -> str:
    """One line for a completed cell, printed at once because a full run takes hours."""
    shown = "bandit" if "bandit" in runs else "order"
    over = ", ".join(f"÷ {label} {_ratio(runs[shown], runs[label])}" for label in ("FCFS", "order"))
    return f"{cell.name}: {shown} {over}"


def _ratio(of: Sequence[Played], to: Sequence[Played]) -> PairedRatio:
    return paired_ratio([one.rate for one in of], [one.rate for one in to])


def report(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    played: Mapping[str, Mapping[str, Sequence[Played]]],
    model: Shape,
) -> Report:
    ratios = {cell.name: model.kv_over_weights(cell.batch, cell.context) for cell in cells}
    rows = [
        [cell.name, label, ratios[cell.name], *_row(one, runs["FCFS"], runs["order"])]
        for cell, runs in ((cell, played[cell.name]) for cell in cells)
        for label, one in runs.items()
    ]
    columns = (
        *("cell", "policy", "KV ÷ weights"),
        *COLUMNS,
        *("converged s", "÷ FCFS", "÷ order"),
    )
    note = "Ratios: geometric mean over pairs; a policy ÷ itself is noise. TTFT, TBT: wall's clock."
    return Report(
        _keys(cells, played),
        (ResultTable("FEATHER in real vLLM", columns, rows, note),),
        lambda figure: _plot(figure, cells, contenders, played),
        {
            "model": model.name,
            "kv_over_weights": ratios,
            "cells": {
                name: {label: [raw(one) for one in runs] for label, runs in by.items()} for name, by in played.items()
            },
            "contenders": {one.label: one.ours.listed() if one.lab is None else one.settings() for one in contenders},
        },
    )


def _row(runs: Sequence[Played], fcfs: Sequence[Played], order: Sequence[Played]) -> list[float | str]:
    return [*latencies(runs), _converged(runs), str(_ratio(runs, fcfs)), str(_ratio(runs, order))]


COLUMNS = ("tok/device s", "tok/s", "TTFT P50 s", "P99 s", "TBT P50 ms", "P99 ms", "batch", "STOPs")
"""Of `latencies`."""


def latencies(runs: Sequence[Played]) -> list[float]:
    """Tokens a second of the device and of the wall's clock; TTFT in seconds and time between tokens in milliseconds,
    P50 and P99 of each; batch; STOPs a run."""
    waits, gaps = [wait for one in runs for wait in one.waits], [1e3 * gap for one in runs for gap in one.gaps]
    return [
        fmean(one.rate for one in runs), fmean(one.tokens / one.wall for one in runs),
        *(_quantile(values, part) for values in (waits, gaps) for part in (0.5, 0.99)),
        fmean(one.batch for one in runs), fmean(one.stops for one in runs),
    ]  # fmt: skip


def _quantile(values: Sequence[float], part: float) -> float:
    """NaN without values, as for gaps of answers with one token."""
    return quantile(values, part) if values else nan


def later(of: Sequence[Played], than: Sequence[Played]) -> float:
    """P99, over the requests of all pairs, of the seconds that a request's first token was later than in the other run.
    It shows what an order costs single requests, while the wait itself depends on the load."""
    pairs = zip(of, than, strict=True)
    return _quantile([a - b for one, other in pairs for a, b in zip(one.waits, other.waits, strict=True)], 0.99)


def _converged(runs: Sequence[Played]) -> str:
    """The median of the runs that became steady, and the number of those that did not."""
    settled = sorted(one.converged for one in runs if not isnan(one.converged))
    if not settled:
        return ""
    return f"{median(settled):.0f}" + (f" ({len(runs) - len(settled)} not)" if len(settled) < len(runs) else "")


def _keys(cells: Sequence[Cell], played: Mapping[str, Mapping[str, Sequence[Played]]]) -> dict[str, float | str]:
    """At 8 × 4k, for each policy: its ratio to FCFS and to the order alone, and its STOPs a run. ceiling_over_fcfs,
    of_ceiling: the best ratio of one group, and the product's share of it. Over the cells that count:
    bandit_over_order_mean, a geometric mean, with its lower bound; bandit_over_order_least, the worst cell's ratio, and
    whether the bandit is nowhere below the order, which is FEATHER's target. wait_later_s: the worst cell's P99 of how
    much later a request of the product started than under FCFS. noshare_low: the lower bound against FCFS without
    sharing, of the bandit and of the product."""
    keys: dict[str, float | str] = {}
    if runs := played.get("8 × 4k"):
        keys |= _parts(runs)
        keys |= _ceiling(runs)
    if product := [runs for runs in played.values() if PRODUCT.label in runs]:
        keys["wait_later_s"] = max(later(runs[PRODUCT.label], runs["FCFS"]) for runs in product)
    if counted := [played[cell.name] for cell in cells if cell.counts and "bandit" in played[cell.name]]:
        keys["bandit_over_order_mean"], keys["bandit_over_order_mean_low"] = _over_cells(counted)
        least = min(_ratio(runs["bandit"], runs["order"]).ratio for runs in counted)
        keys |= {"bandit_over_order_least": least, "bandit_over_order_everywhere": "met" if least >= 1 else "missed"}
    for cell in cells:
        if not cell.groups:
            for label in ("bandit", PRODUCT.label):
                if label in (runs := played[cell.name]):
                    keys[f"{label}_noshare_low"] = _ratio(runs[label], runs["FCFS"]).low
    return keys


_PARTS = ("order", "FCFS sorted", "order sorted", "product", "bandit", "bandit, 10 s")


def _parts(runs: Mapping[str, Sequence[Played]]) -> dict[str, float | str]:
    keys: dict[str, float | str] = {}
    for label in _PARTS:
        if label in runs:
            name = label.replace(", ", "_").replace(" ", "_")
            keys[f"{name}_over_fcfs"] = _ratio(runs[label], runs["FCFS"]).ratio
            keys[f"{name}_over_order"] = _ratio(runs[label], runs["order"]).ratio
            keys[f"{name}_stops"] = fmean(one.stops for one in runs[label])
    return keys


def _ceiling(runs: Mapping[str, Sequence[Played]]) -> dict[str, float]:
    alone = [runs[one.label] for one in CEILINGS if one.label in runs]
    if not alone:
        return {}
    ceiling = max(alone, key=lambda one: _ratio(one, runs["FCFS"]).ratio)
    ours = runs.get(PRODUCT.label, runs["order"])
    return {
        "ceiling_over_fcfs": _ratio(ceiling, runs["FCFS"]).ratio,
        "of_ceiling": _ratio(ours, ceiling).ratio,
    }


def _over_cells(cells: Sequence[Mapping[str, Sequence[Played]]]) -> tuple[float, float]:
    """Geometric mean over cells, each with equal weight, and the lower end of its 95 % interval. If a cell has too few
    pairs for that, the mean of the cells' smallest ratios."""
    logs = [
        [log(one.rate / other.rate) for one, other in zip(runs["bandit"], runs["order"], strict=True)] for runs in cells
    ]
    mean = fmean(fmean(pairs) for pairs in logs)
    if min(map(len, logs)) < LEAST_PAIRS:
        return exp(mean), exp(fmean(min(pairs) for pairs in logs))
    error = sqrt(sum(variance(pairs) / len(pairs) for pairs in logs)) / len(logs)
    return exp(mean), exp(mean - students_t(sum(len(pairs) - 1 for pairs in logs)) * error)


def raw(one: Played) -> dict[str, float]:
    """For the report's JSON."""
    found = {
        "tokens_per_cpu_s": one.rate,
        "tokens_per_s": one.tokens / one.wall,
        "batch": one.batch,
        "stops": one.stops,
    }
    found |= {"ttft_p99_s": _quantile(one.waits, 0.99), "tbt_p99_s": _quantile(one.gaps, 0.99) if one.gaps else 0.0}
    found |= {} if isnan(one.after) else {"after_step": one.after}
    return found if isnan(one.converged) else found | {"converged_s": one.converged}


def _plot(
    figure: Any,
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    played: Mapping[str, Mapping[str, Sequence[Played]]],
) -> None:
    axes, width = figure.subplots(), 0.9 / max(map(len, played.values()))
    for contender in contenders:
        bars = [_bar(contender, place, played[cell.name], width) for place, cell in enumerate(cells)]
        if shown := [bar for bar in bars if bar is not None]:
            axes.bar(*zip(*shown, strict=True), width, label=contender.label)
    axes.set_xticks(range(len(cells)), [cell.name for cell in cells], rotation=30, horizontalalignment="right")
    axes.set_ylabel("output tokens a second of the device ÷ FCFS")
    axes.axhline(1.0, color="black", linewidth=0.5)
    figure.legend(loc="outside right upper")


def _bar(
    contender: Contender, place: int, runs: Mapping[str, Sequence[Played]], width: float
) -> tuple[float, float] | None:
    """The position of a bar among its cell's bars, which are side by side around `place`, and its height. None if there
    is none."""
    if contender.label not in runs:
        return None
    at = list(runs).index(contender.label) - (len(runs) - 1) / 2
    rates = [fmean(one.rate for one in runs[label]) for label in (contender.label, "FCFS")]
    return place + at * width, rates[0] / rates[1]
