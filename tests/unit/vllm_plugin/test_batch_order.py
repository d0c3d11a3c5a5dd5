from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_engine.vllm import batch_order
from plumage_engine.vllm.batch_order import rank_rows, swaps
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard


@given(st.lists(st.binary(max_size=3), max_size=30))
def test_the_swaps_sort_the_rows(rows: list[bytes]) -> None:
    placed = list(rows)
    wanted = rank_rows(rows)
    for one, other in swaps(wanted):
        placed[one], placed[other] = placed[other], placed[one]
    assert placed == sorted(rows)
    assert placed == [rows[row] for row in wanted]


@given(st.permutations(range(12)))
def test_no_more_swaps_than_the_cycles_need(wanted: list[int]) -> None:
    moved = sum(1 for place, row in enumerate(wanted) if place != row)
    assert len(swaps(wanted)) <= max(0, moved - 1)


def test_rows_of_one_prefix_stand_together_at_every_level() -> None:
    root, left, right = b"\x01\0\0\0", b"\x07\0\0\0", b"\x03\0\0\0"
    rows = [root + left + b"a", b"\x02\0\0\0", root + right + b"b", root + left + b"c"]
    assert [rows[row][:8] for row in rank_rows(rows)] == [root + right, root + left, root + left, rows[1][:8]]


def test_a_sorted_batch_is_left_alone() -> None:
    assert swaps(rank_rows([b"a", b"a", b"b"])) == []


def test_a_runner_that_is_left_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_order, "_guard", None)
    guard = Guard("batchOrder", Counters())
    batch_order.install(guard, SimpleNamespace(use_v2_model_runner=True))
    assert not guard.on
    assert "second model runner" in guard.reason
