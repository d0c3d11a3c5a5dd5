"""Figures without a key in an older run, computed from its other data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from plumage_bench.evidence.figures import Cell, Computed, Measured, Record, measured
from plumage_bench.pairs import paired_ratio
from plumage_bench.routing.contenders import EVICTIONS, OURS

__all__ = [
    "again_of_full",
    "bandit_least",
    "fault_total",
    "feather_ratio",
    "greatest_in_column",
    "over_cache_aware",
    "rank_equal",
    "rank_equal_of_full",
    "rate_over",
    "rounds_cached",
    "rounds_ratio",
    "suite_least_over_lru",
    "unreached_devices",
    "victims",
]

_DEFAULT_SETTING = "{cache-aware, LBGR}"
_OURS, _THEIRS = "Lbgr + Hotness", "cache-aware + Lru"


def over_cache_aware(column: str, *, less_is_better: bool) -> Computed:
    """Our gain over cache-aware routing with LRU in the default setting, by a column of the routing tables."""

    def by(run: Record) -> Measured | None:
        ours, theirs = (Cell(_DEFAULT_SETTING, (who,), column).read(run) for who in (_OURS, _THEIRS))
        if ours is None or theirs is None:
            return None
        return Measured(theirs.value / ours.value if less_is_better else ours.value / theirs.value)

    return Computed(by)


def rank_equal(run: Record) -> Measured | None:
    """Our highest rate ÷ the best other's with the same eviction, the smallest of fleets and evictions, from the rates
    of each seed. low: the lowest of any. high: that of the smallest ratio."""
    ratios = []
    for rates in run["data"]["rates"].values():
        for eviction in EVICTIONS:
            mine = rates[OURS.over(eviction).label]
            baselines = [
                label for label in rates if label.endswith(f" + {eviction}") and not label.startswith(OURS.policy)
            ]
            ratios.append(min((paired_ratio(mine, rates[label]) for label in baselines), key=lambda one: one.ratio))
    least = min(ratios, key=lambda one: one.ratio)
    return Measured(least.ratio, min(one.low for one in ratios), least.high, least.pairs, again=True)


def rank_equal_of_full(run: Record) -> Measured | None:
    """`rank_equal` of a full run, without the devices on which no policy reaches the limit at any rate."""
    rows = [row for row in _equal_rows(run) if not _unreached(row)]
    if not rows:
        return None
    least = min(rows, key=_ratio_of)
    return Measured(_ratio_of(least), min(row["low"] for row in rows), least["high"], least["seeds"])


def again_of_full(run: Record) -> Measured | None:
    """`aa` of a full run: ours ÷ ours on other seeds, on the device of `rank_equal_of_full`."""
    rows = [row for row in _equal_rows(run) if not _unreached(row)]
    return measured(min(rows, key=_ratio_of)["ours ÷ ours, other seeds"]) if rows else None


def rate_over(*baselines: str) -> Computed:
    """Ours ÷ the best baseline of the second round whose label ends with one of `baselines`, the smallest of the
    devices on which some policy reaches the limit."""

    def by(run: Record) -> Measured | None:
        unreached = {row["fleet"] for row in _equal_rows(run) if _unreached(row)}
        rows = [row for row in _rows(run, f"{OURS.label} against those who may be first") if _is_of(row, baselines)]
        ratios = [_ratio_of(row) for row in rows if row["fleet"] not in unreached]
        return Measured(min(ratios)) if ratios else None

    return Computed(by)


def _is_of(row: Mapping[str, Any], baselines: Sequence[str]) -> bool:
    return any(str(row["label"]).endswith(one) for one in baselines)


def _ratio_of(row: Mapping[str, Any]) -> float:
    return float(row["ours ÷ baseline"])


def unreached_devices(run: Record) -> Measured | None:
    """Devices of a full run on which no policy reaches the limit: all stay at the lowest rate of the search."""
    rows = _equal_rows(run)
    return Measured(len({row["fleet"] for row in rows if _unreached(row)})) if rows else None


def _equal_rows(run: Record) -> list[dict[str, Any]]:
    return _rows(run, "Routing at equal eviction")


def _rows(run: Record, title: str) -> list[dict[str, Any]]:
    """The rows by column. label: the cell of the first column `baseline`; a second one has its rate."""
    tables = [table for table in run["tables"] if table["title"].startswith(title)]
    return [
        {**dict(zip(table["columns"], row, strict=True)), "label": row[1]} for table in tables for row in table["rows"]
    ]


def _unreached(row: Mapping[str, Any]) -> bool:
    return bool(row["ours, req/s"] == row["baseline"] and row["low"] == row["high"] == 1)


def suite_least_over_lru(room: str) -> Computed:
    """Hotness ÷ LRU, the smallest of the few-shot suites, in a cache of `room`, as in "80%"."""

    def by(run: Record) -> Measured | None:
        for table in run["tables"]:
            if table["title"].startswith(f"Few-shot suites, cache {room}"):
                rows = {row[0]: [float(cell) for cell in row[1:-1]] for row in table["rows"]}
                return Measured(min(a / b for a, b in zip(rows["Hotness"], rows["Lru"], strict=True)))
        return None

    return Computed(by)


def greatest_in_column(row: str, column: str) -> Computed:
    """The largest cell under `column`, in any table, of the rows that begin with `row`."""
    return Computed(lambda run: max(_cells(run, "", 0, row, column), key=_value, default=None))


def bandit_least(table: str, column: str) -> Computed:
    """The bandit by a column of ratios, in the load with the smallest one."""
    return Computed(lambda run: min(_cells(run, table, 1, "bandit", column), key=_value, default=None))


def _value(one: Measured) -> float:
    return one.value


def _cells(run: Record, table: str, at: int, row: str, column: str) -> Iterator[Measured]:
    for one in run["tables"]:
        if one["title"].startswith(table) and column in one["columns"]:
            index = one["columns"].index(column)
            found = (measured(cells[index]) for cells in one["rows"] if cells[at] == row)
            yield from (cell for cell in found if cell is not None)


def victims(run: Record) -> Measured | None:
    """Hit ratio after the loss of the coldest replica ÷ after the loss of a random one."""
    coldest, drawn = (
        [trial["after"] for trial in run["trials"] if trial["who"] == who] for who in ("coldest", "random")
    )
    return _of_pairs(coldest, drawn)


def fault_total(of: str, over: Callable[[list[float]], float] = sum) -> Computed:
    """One property of all faults: their sum, or `max` of it."""
    return Computed(lambda run: Measured(float(over([fault[of] for fault in run["faults"]]))))


def feather_ratio(cell: str, over: str, under: str) -> Computed:
    """Tokens a second of two policies of `vllm-feather` in a cell, by pairs."""

    def by(run: Record) -> Measured:
        runs = run["data"]["cells"][cell]
        return _of_pairs(*([one["tokens_per_s"] for one in runs[label]] for label in (over, under)))

    return Computed(by)


def rounds_ratio(over: str, under: str, title: str = "") -> Computed:
    """Requests a second of two contenders of `vllm-hotprefix`, by rounds. title: of the model and the link, in runs
    with several."""

    def by(run: Record) -> Measured:
        rounds = run["data"]["rounds"]
        rounds = rounds[title] if title else rounds
        return _of_pairs(*([1 / one["seconds"] for one in rounds[label]] for label in (over, under)))

    return Computed(by)


def rounds_cached(label: str, title: str) -> Computed:
    """The share of the prompt tokens that a contender of `vllm-hotprefix` found in a cache, mean of the rounds."""

    def by(run: Record) -> Measured:
        return Measured(fmean(one["cached"] for one in run["data"]["rounds"][title][label]))

    return Computed(by)


def _of_pairs(over: Sequence[float], under: Sequence[float]) -> Measured:
    ratio = paired_ratio(over, under)
    return Measured(ratio.ratio, ratio.low, ratio.high, ratio.pairs, again=True)
