"""`agents`: two measurements of agents' prompts.

- `breakers`: what a client loses when it changes early bytes, in real time on local pools;
- `hints`: what a router and its engines gain by hints about agents' sessions, in virtual time under cache pressure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from plumage_bench.benches.agents import breakers, hints
from plumage_bench.harness import Context, Report, Run

__all__ = ["run"]

_PARTS: Final[Mapping[str, Run]] = {"breakers": breakers.run, "hints": hints.run}


def run(context: Context) -> Report:
    """Options: parts, pairs, contenders."""
    reports = {name: _PARTS[name](context) for name in context.some("parts", tuple(_PARTS))}
    return Report(
        {key: value for one in reports.values() for key, value in one.keys.items()},
        [table for one in reports.values() for table in one.tables],
        _side_by_side([one.plot for one in reports.values() if one.plot is not None]),
        {name: one.data for name, one in reports.items()},
    )


def _side_by_side(plots: list[Callable[[Any], None]]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        parts = figure.subfigures(1, len(plots), squeeze=False)[0]
        for part, plot in zip(parts, plots, strict=True):
            plot(part)

    return draw
