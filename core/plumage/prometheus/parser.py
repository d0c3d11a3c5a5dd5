"""Reads the samples of a page in Prometheus' text form, version 0.0.4. Pure.

An agent reads its engine's page several times a second and needs a few of its names. So a sample's labels and value are
parsed only when they are asked for. Lines that are no samples are skipped; a value that is no number is 0, and so is
one that is infinite.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

__all__ = ["Buckets", "Sample", "amount", "buckets_of", "samples"]

_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_MOST: Final = 2.0**63


class Sample(NamedTuple):
    """One line. rest: what follows the name: labels in braces, value, perhaps a time."""

    name: str
    rest: str

    @property
    def labels(self) -> dict[str, str]:
        return {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(self.rest.rpartition("}")[0])}

    @property
    def value(self) -> float:
        """A label's value may hold blanks and braces, so the number stands behind the last brace."""
        words = self.rest.rpartition("}")[2].split(maxsplit=1)
        return amount(words[0]) if words else 0.0


class Buckets(NamedTuple):
    """A histogram. bounds: finite upper ends, ascending. counts: values up to each bound, and last all of them."""

    bounds: list[float]
    counts: list[int]
    total: float


def samples(page: str, prefixes: str | tuple[str, ...]) -> Iterator[Sample]:
    """The samples whose names begin with one of the prefixes, in the page's order."""
    for line in page.splitlines():
        if line.startswith(prefixes):
            name = line.split("{", 1)[0].split(" ", 1)[0]
            yield Sample(name, line[len(name) :])


def buckets_of(found: Iterable[Sample], name: str) -> Buckets | None:
    """The histogram of this name, the sum of its series; None where the page has none."""
    counts: defaultdict[float, float] = defaultdict(float)
    total = 0.0
    for sample in found:
        if sample.name == f"{name}_bucket":
            counts[_number(sample.labels.get("le", ""))] += sample.value
        elif sample.name == f"{name}_sum":
            total += sample.value
    if not counts:
        return None
    bounds = sorted(counts)
    reached = [int(counts[bound]) for bound in bounds]
    finite = [bound for bound in bounds if bound != float("inf")]
    return Buckets(finite, reached if len(finite) < len(reached) else [*reached, reached[-1]], total)


def amount(text: str) -> float:
    """A count, time or size, so small that a sum of them is finite. 0 for what is no number, and for larger ones."""
    value = _number(text)
    return value if abs(value) < _MOST else 0.0


def _number(text: str) -> float:
    """0 for what is no number, NaN included."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value == value else 0.0


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
