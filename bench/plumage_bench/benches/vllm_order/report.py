"""The report of `vllm-order`: a row for each contender and cell, the product over the oracle, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import Any

from plumage_bench.benches.vllm_feather.cells import Cell
from plumage_bench.benches.vllm_feather.contenders import Contender
from plumage_bench.benches.vllm_feather.report import COLUMNS, Played, latencies, raw
from plumage_bench.benches.vllm_order.loads import PRODUCT
from plumage_bench.harness import Figure, Report, ResultTable, least_keys
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["line", "over", "report"]

Runs = Mapping[str, Sequence[Played]]
"""Of one cell, by the contender's label."""
_REFERENCES = ("oracle", "DFS-W", "order")


def over(runs: Runs, label: str, other: str) -> PairedRatio:
    """Tokens a second of the device's time; in a cell with a step, of the time after it."""
    return paired_ratio(_rates(runs[label]), _rates(runs[other]))


def line(cell: Cell, runs: Runs) -> str:
    """For a completed cell, printed at once because a full run takes long."""
    others = [other for other in _REFERENCES if other in runs]
    return f"{cell.name}: product " + ", ".join(f"÷ {other} {over(runs, PRODUCT.label, other)}" for other in others)


def report(cells: Sequence[Cell], contenders: Sequence[Contender], played: Mapping[str, Runs]) -> Report:
    rows = [
        [cell.name, label, *latencies(own), _after(own), *(_shown(played[cell.name], label, to) for to in _REFERENCES)]
        for cell in cells
        for label, own in played[cell.name].items()
    ]
    columns = ("cell", "policy", *COLUMNS, "tok/device s after the step", *(f"÷ {other}" for other in _REFERENCES))
    note = "Ratios: geometric mean over pairs; after the step where there is one. TTFT, TBT: wall's clock."
    return Report(
        _keys(list(played.values())),
        (ResultTable("Orders in real vLLM", columns, rows, note),),
        lambda figure: _plot(figure, played),
        {
            "cells": {
                name: {label: [raw(one) for one in own] for label, own in runs.items()} for name, runs in played.items()
            },
            "contenders": {one.label: one.ours.listed() if one.lab is None else one.settings() for one in contenders},
        },
    )


def _rates(runs: Sequence[Played]) -> list[float]:
    return [one.rate if isnan(one.after) else one.after for one in runs]


def _after(runs: Sequence[Played]) -> float | str:
    return "" if any(isnan(one.after) for one in runs) else fmean(one.after for one in runs)


def _shown(runs: Runs, label: str, other: str) -> str:
    return str(over(runs, label, other)) if other in runs else ""


def _keys(played: Sequence[Runs]) -> dict[str, Figure]:
    """The product over the oracle and over DFS-W, the least of the cells each."""
    keys: dict[str, Figure] = {}
    for other, name in (("oracle", "over_oracle"), ("DFS-W", "over_dfs")):
        if ratios := [over(runs, PRODUCT.label, other) for runs in played if other in runs]:
            keys |= least_keys(name, ratios)
    return keys


def _plot(figure: Any, played: Mapping[str, Runs]) -> None:
    axes = figure.subplots()
    labels = list(dict.fromkeys(label for runs in played.values() for label in runs))
    width = 0.9 / len(labels)
    for index, label in enumerate(labels):
        bars = [
            (place + index * width, fmean(_rates(runs[label])) / fmean(_rates(runs["oracle"])))
            for place, runs in enumerate(played.values())
            if label in runs
        ]
        axes.bar(*zip(*bars, strict=True), width, label=label)
    axes.set_xticks([place + 0.4 for place in range(len(played))], list(played), rotation=20)
    axes.set_ylabel("output tokens a second of the device ÷ oracle")
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.legend(fontsize="small")
