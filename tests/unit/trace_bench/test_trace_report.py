"""What `bench trace` reports about one cache: the compared sides, and the least margin over the sizes."""

from __future__ import annotations

from typing import Any

import pytest

from plumage_bench.benches import trace
from plumage_bench.benches.trace import libcache
from plumage_bench.benches.trace.hitratios import BOUND, OURS, SHARES, Contender, Ratio, Ratios
from plumage_bench.benches.trace.routed import Routed
from plumage_bench.harness import Report

BEST = "LRU"
ROWS = {  # by routing and eviction: hit ratio first, then times
    "Lbgr + Lru": Routed(0.9, *[1.0] * 8),
    "round robin + Lru": Routed(0.6, *[2.0] * 8),
    "Lbgr + Hotness": Routed(0.9, *[1.0] * 8),
    "round robin + Hotness": Routed(1.0, *[1.6] * 8),
}


def ratios(whole: float, second: float, least: float | None = None) -> Ratios:
    """The same ratios at every size, except `least` of the whole trace at the largest."""
    return {share: Ratio(whole if least is None or share < SHARES[-1] else least, second) for share in SHARES}


def reported(*, quick: bool) -> Report:
    """Ours: 0.50 and 0.60 by seed, 0.66 with partial blocks. The best of the others: 0.44 with and
    0.50 without them.
    """
    measured: dict[Contender, Ratios] = {}
    for contender in trace._contenders(0, quick=quick):
        if contender.policy == OURS:
            measured[contender] = ratios(0.66, 0.77) if contender.partial else ratios(0.60, 0.80, 0.55)
        elif contender.policy in libcache.NAMES:
            best = contender.policy == BEST
            measured[contender] = ratios(0.44 if contender.partial else 0.50, 0.40) if best else ratios(0.1, 0.1)
        else:
            measured[contender] = ratios(0.9, 0.9)
    measured[Contender(OURS, partial=False, naming=0)] = ratios(0.50, 0.20)
    return trace._report(measured, ROWS, "about", [], {})


def test_every_key_compares_the_sides_in_its_name() -> None:
    keys = reported(quick=False).keys
    seeds = trace._NAMINGS
    mean_second, mean_largest = (0.2 + 0.8 * (seeds - 1)) / seeds, (0.5 + 0.55 * (seeds - 1)) / seeds
    expected = {
        "min_over_best": mean_largest / 0.44,
        "min_over_best_second": mean_second / 0.40,
        "min_over_best_partial": 0.66 / 0.44,
        "min_over_best_partial_second": 0.77 / 0.40,
        "min_over_best_full": mean_largest / 0.50,
        "min_over_best_full_second": mean_second / 0.40,
        "min_over_best_worst_seed": 0.50 / 0.44,
    }
    assert list(keys)[: len(expected)] == list(expected)
    assert {name: keys[name] for name in expected} == pytest.approx(expected)
    assert keys["fleet_ttft_p50_over_best"] == 1.0 / 1.6
    assert keys["fleet_hit_over_best"] == 0.9


def test_quick_run_reports_only_what_it_ran() -> None:
    assert not [key for key in reported(quick=True).keys if "full" in key]


@pytest.mark.parametrize("quick", [True, False])
def test_rows_are_ours_then_the_bounds_then_the_others_by_rank(quick: bool) -> None:
    report = reported(quick=quick)
    rows = [row[0] for row in report.tables[0].rows]
    seeds = trace._NAMINGS_QUICK if quick else trace._NAMINGS
    assert rows[:6] == [
        OURS, f"{OURS}, worst of {seeds}", f"{OURS} + partial", BOUND, "Belady + partial", BEST,
    ]  # fmt: skip
    names = libcache.LEADERS if quick else libcache.NAMES
    theirs = rows[5 : 5 + len(names)]
    assert sorted(theirs) == sorted(names)
    assert rows[5 + len(names) :] == ([] if quick else [f"{name} - partial" for name in theirs])
    written: Any = report.data["hit_ratios"]
    assert list(written) == rows
    assert written[BEST][f"{SHARES[0]:g}"] == [0.44, 0.40]
    assert len(report.data[f"{OURS} by naming"]) == seeds
