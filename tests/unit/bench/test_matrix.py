"""The 2 x 3 table marks rows that show nothing about eviction."""

from __future__ import annotations

from plumage_bench.routing.contenders import MATRIX, Contender
from plumage_bench.routing.report import matrix_table
from plumage_bench.routing.scenario import Figures


def figures(hit_ratios: dict[str, float]) -> dict[Contender, Figures]:
    """By label; one half where none is given."""
    return {one: Figures([0.1], [0.2], hit_ratios.get(one.label, 0.5), 1.0, 0.0, 0.0) for one in MATRIX}


def test_equal_rows_get_a_note() -> None:
    assert matrix_table(figures({})).notes.startswith("The rows of cache-aware and Lbgr are equal in every digit")
    assert matrix_table(figures({"cache-aware + Rlt": 0.6})).notes.startswith("The rows of Lbgr are equal")


def test_different_rows_get_no_note() -> None:
    assert matrix_table(figures({"cache-aware + Rlt": 0.5000001, "Lbgr + Hotness": 0.6})).notes == ""
