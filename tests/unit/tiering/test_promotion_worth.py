"""Promotion pauses while too few promoted blocks are used, longer each time, and then resumes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.tiering import PromotionWorth


def rested(worth: PromotionWorth) -> int:
    """Turns until promotion resumes."""
    turns = 0
    while not worth.turn():
        turns += 1
    return turns


def test_used_promotions_continue() -> None:
    worth = PromotionWorth(least=0.5, window=10, rest=4)
    for _ in range(100):
        worth.count_outcomes(used=5, wasted=5)
    assert worth.turn()
    assert worth.rests == 0


def test_unused_promotions_pause_twice_as_long_each_time_up_to_a_limit() -> None:
    worth = PromotionWorth(least=0.5, window=10, rest=2)
    rests = []
    for _ in range(9):
        worth.count_outcomes(used=4, wasted=6)
        assert worth.resting
        rests.append(rested(worth))
    assert rests == [2, 4, 8, 16, 32, 64, 128, 128, 128]
    worth.count_outcomes(used=5, wasted=5)
    worth.count_outcomes(used=4, wasted=6)
    assert rested(worth) == 2


def test_promotion_is_judged_by_enough_blocks_only() -> None:
    worth = PromotionWorth(least=0.5, window=10, rest=2)
    worth.count_outcomes(wasted=9)
    assert worth.turn()
    worth.count_outcomes(wasted=1)
    assert not worth.turn()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=50))
def test_pauses_are_counted_and_end(fates: list[tuple[int, int]]) -> None:
    worth = PromotionWorth(least=0.3, window=8, rest=3)
    for used, wasted in fates:
        before = worth.rests
        worth.count_outcomes(used=used, wasted=wasted)
        assert worth.rests - before in (0, 1)
        assert not worth.rests or rested(worth) <= 3 * 64


@pytest.mark.parametrize("given", [{"least": 1.5}, {"window": 0}, {"rest": 0}])
def test_impossible_settings_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="promotion"):
        PromotionWorth(**given)  # type: ignore[arg-type]
