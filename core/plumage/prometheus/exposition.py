"""Prometheus' text form, version 0.0.4, and OpenMetrics 1.0: the page that a scraper reads.

A family is its HELP line, its TYPE line and its samples, in this order and without other lines between them. This
module escapes texts and values of labels, and adds `_total` to the names of counters.
Source: Prometheus, "Exposition formats", text-based format; OpenMetrics 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "CONTENT_TYPE",
    "OPENMETRICS_TYPE",
    "counter",
    "counters",
    "counters_by",
    "gauge",
    "gauges",
    "gauges_by",
    "histogram",
    "label_value",
    "page",
    "wanted_page",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL = "_total"
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def page(*families: Iterable[str]) -> str:
    """The answer to a scrape: the lines of all families, each with its end of line."""
    return "".join(f"{line}\n" for family in families for line in family)


def wanted_page(accept: str, *families: Iterable[str]) -> tuple[str, str]:
    """The answer in the form that a scraper's Accept header asks for, and its content type."""
    if not _wants_openmetrics(accept):
        return page(*families), CONTENT_TYPE
    lines = _openmetrics(line for family in families for line in family)
    return "".join(f"{line}\n" for line in lines) + "# EOF\n", OPENMETRICS_TYPE


def _wants_openmetrics(accept: str) -> bool:
    for offer in accept.split(","):
        kind, *parameters = (part.strip().replace(" ", "") for part in offer.split(";"))
        if kind.lower() == "application/openmetrics-text":
            return not any(parameter in ("q=0", "q=0.0") for parameter in parameters)
    return False


def _openmetrics(lines: Iterable[str]) -> Iterator[str]:
    """In OpenMetrics the samples of a counter have `_total`, but its family has not. A histogram with negative bounds
    has neither a sum nor a count."""
    negative: set[str] = set()
    for line in lines:
        if not line.startswith("# "):
            name = line.partition("{")[0].partition(" ")[0]
            if 'le="-' in line:
                negative.add(name.removesuffix("_bucket"))
            if name.removesuffix("_sum").removesuffix("_count") not in negative:
                yield line
            continue
        mark, kind, name, rest = line.split(" ", 3)
        if kind == "HELP" or rest == "counter":
            name = name.removesuffix(_TOTAL)
        yield " ".join((mark, kind, name, rest))


def counter(name: str, text: str, value: float) -> Iterator[str]:
    """A count that only grows. name: without `_total`. text: what it counts."""
    yield from _family(name + _TOTAL, "counter", text)
    yield f"{name}{_TOTAL} {_number(value)}"


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    """Counts by the value of one label, in the order of `values`."""
    yield from _family(name + _TOTAL, "counter", text)
    yield from _labelled(name + _TOTAL, label, values)


def counters_by(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Iterator[str]:
    """Counts by the values of several labels, in the order of `values`."""
    yield from _family(name + _TOTAL, "counter", text)
    yield from _labelled_by(name + _TOTAL, labels, values)


def gauge(name: str, text: str, value: float) -> Iterator[str]:
    """A current value."""
    yield from _family(name, "gauge", text)
    yield f"{name} {_number(value)}"


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    """Current values by the value of one label, in the order of `values`."""
    yield from _family(name, "gauge", text)
    yield from _labelled(name, label, values)


def gauges_by(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Iterator[str]:
    """Current values by the values of several labels, in the order of `values`."""
    yield from _family(name, "gauge", text)
    yield from _labelled_by(name, labels, values)


def histogram(name: str, text: str, bounds: Sequence[float], reached: Sequence[int], total: float) -> Iterator[str]:
    """bounds: upper ends of the buckets, ascending; a value equal to a bound is within. reached: the count of
    values up to each bound, and last of all values: one number more than bounds. total: the sum of the values."""
    yield from _family(name, "histogram", text)
    for bound, count in zip((*bounds, float("inf")), reached, strict=True):
        yield f'{name}_bucket{{le="{_number(bound)}"}} {count}'
    yield f"{name}_sum {_number(total)}"
    yield f"{name}_count {reached[-1]}"


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text.translate(_HELP)}"
    yield f"# TYPE {name} {kind}"


def _labelled(name: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    for key, value in values.items():
        yield f'{name}{{{label}="{label_value(key)}"}} {_number(value)}'


def _labelled_by(name: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Iterator[str]:
    for key, value in values.items():
        named = ",".join(f'{label}="{label_value(one)}"' for label, one in zip(labels, key, strict=True))
        yield f"{name}{{{named}}} {_number(value)}"


def label_value(text: str) -> str:
    """The value of a label, escaped for its place between the quotes."""
    return text.translate(_LABEL)


def _number(value: float) -> str:
    """The shortest text that reads back as the same number; whole numbers without a point."""
    text = repr(float(value)).removesuffix(".0")
    return _NOT_FINITE.get(text, text)
