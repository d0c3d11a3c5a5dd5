"""Figures of a kept run: a key of its closing line, a cell of its tables, or something computed from both.

A key KEY may come with KEY_low and KEY_high, its interval, and with KEY_pairs or pairs, the number of pairs. A cell has
a number, or a text such as "1.03 (95 %: 1.02 to 1.05, 20 pairs)". A figure that a run does not have is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

__all__ = ["Cell", "Computed", "Either", "Figure", "Key", "Measured", "Minus", "Over", "Record", "measured"]

Record = Mapping[str, Any]
"""A kept run's JSON."""
_NUMBER = r"-?[0-9][0-9,]*(?:\.[0-9]+)?"
_TEXT = re.compile(rf"({_NUMBER})(?: \((?:(?:95 %|range): )?({_NUMBER}) to ({_NUMBER})(?:, ([0-9]+) pairs?)?\))?")


@dataclass(frozen=True, slots=True)
class Measured:
    """low, high: ends of the interval, or of the range of fewer than five pairs; None if the run has none. again: the
    interval is computed from the pairs now, not read from the run."""

    value: float
    low: float | None = None
    high: float | None = None
    pairs: int | None = None
    again: bool = False


class Figure(Protocol):
    """The place of a figure in a run."""

    def read(self, run: Record) -> Measured | None: ...


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the closing line. pairs: the number of pairs, if it is not the run's. low: the key of its lower end, if
    it is not NAME_low."""

    name: str
    pairs: int | None = None
    low: str = ""

    def read(self, run: Record) -> Measured | None:
        keys = run.get("keys", {})
        value = keys.get(self.name)
        if not isinstance(value, int | float):
            return None
        pairs = keys.get(f"{self.name}_pairs", self.pairs or keys.get("pairs"))
        low = keys.get(f"{self.name}_low", keys.get(self.low))
        return Measured(float(value), low, keys.get(f"{self.name}_high"), pairs)


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell under `column` of the first row that begins with `row`, in the first table whose title begins with
    `table`."""

    table: str
    row: tuple[str, ...]
    column: str
    pairs: int | None = None

    def read(self, run: Record) -> Measured | None:
        for table in run.get("tables", ()):
            if table["title"].startswith(self.table) and self.column in table["columns"]:
                return self._among(table["rows"], table["columns"].index(self.column))
        return None

    def _among(self, rows: list[list[Any]], column: int) -> Measured | None:
        found = next((row[column] for row in rows if tuple(row[: len(self.row)]) == self.row), None)
        read = measured(found)
        return read if read is None or self.pairs is None else replace(read, pairs=self.pairs)


@dataclass(frozen=True, slots=True)
class Either:
    """The same figure in two places: the first that the run has."""

    first: Figure
    second: Figure

    def read(self, run: Record) -> Measured | None:
        return self.first.read(run) or self.second.read(run)


@dataclass(frozen=True, slots=True)
class Over:
    """One figure ÷ another of the same run, without an interval."""

    over: Figure
    under: Figure

    def read(self, run: Record) -> Measured | None:
        over, under = self.over.read(run), self.under.read(run)
        return Measured(over.value / under.value) if over and under and under.value else None


@dataclass(frozen=True, slots=True)
class Minus:
    """One figure minus another of the same run, without an interval."""

    whole: Figure
    part: Figure

    def read(self, run: Record) -> Measured | None:
        whole, part = self.whole.read(run), self.part.read(run)
        return Measured(whole.value - part.value) if whole and part else None


@dataclass(frozen=True, slots=True)
class Computed:
    """`by` computes it from the run. It returns None or raises KeyError if the run lacks the data."""

    by: Callable[[Record], Measured | None]

    def read(self, run: Record) -> Measured | None:
        try:
            return self.by(run)
        except KeyError:
            return None


def measured(cell: Any) -> Measured | None:
    """A cell of a table as a figure; None for other text."""
    if isinstance(cell, int | float):
        return Measured(float(cell))
    found = _TEXT.fullmatch(cell) if isinstance(cell, str) else None
    if found is None:
        return None
    value, low, high = (None if text is None else float(text.replace(",", "")) for text in found.groups()[:3])
    return None if value is None else Measured(value, low, high, int(found[4]) if found[4] else None)
