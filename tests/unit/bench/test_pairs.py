"""Paired ratios and their intervals."""

from __future__ import annotations

import random

import pytest

from plumage_bench.pairs import paired_ratio, students_t


def test_ratio_is_found_under_noise_that_both_of_a_pair_share() -> None:
    rng = random.Random(1)
    machine = [rng.lognormvariate(0.0, 0.5) for _ in range(30)]
    over = [1.3 * speed * rng.lognormvariate(0.0, 0.02) for speed in machine]
    found = paired_ratio(over, machine)
    assert found.low - 0.01 < 1.3 < found.high + 0.01
    assert found.high - found.low < 0.05


@pytest.mark.parametrize("pairs", [5, 10, 20])
def test_interval_covers_the_truth_at_its_level(pairs: int) -> None:
    rng = random.Random(2)
    held = 0
    for _ in range(2_000):
        found = paired_ratio([rng.lognormvariate(0.0, 0.3) for _ in range(pairs)], [1.0] * pairs)
        held += found.low <= 1.0 <= found.high
    assert 1_870 <= held <= 1_930  # 95 % of 2,000 are 1,900; their standard deviation is 10


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (9, 2.262), (19, 2.093), (100, 1.984)])
def test_quantile_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert students_t(freedom) == pytest.approx(quantile, rel=1e-3)


def test_thing_compared_with_itself_is_one() -> None:
    same = [3.0, 5.0, 4.0, 2.0, 6.0]
    assert str(paired_ratio(same, same)) == "1.000 (95 %: 1.000 to 1.000, 5 pairs)"


@pytest.mark.parametrize("pairs", [2, 3, 4])
def test_fewer_than_five_pairs_print_a_range_and_no_interval(pairs: int) -> None:
    over = [1.0, 2.0, 4.0, 8.0][:pairs]
    found = paired_ratio(over, [1.0] * pairs)
    assert (found.low, found.high) == (pytest.approx(over[0]), pytest.approx(over[-1])), "minimum and maximum"
    assert "95 %" not in str(found)
    assert f"range: 1.000 to {over[-1]:.3f}, {pairs} pairs" in str(found)


def test_five_pairs_have_an_interval() -> None:
    over = [1.0, 2.0, 4.0, 8.0, 16.0]
    found = paired_ratio(over, [1.0] * 5)
    assert found.spread == "95 %"
    assert (found.low, found.high) == (pytest.approx(4.0 / 3.90, rel=0.2), pytest.approx(4.0 * 3.90, rel=0.2))


def test_one_pair_has_no_interval() -> None:
    assert str(paired_ratio([3.0], [2.0])) == "1.500 (one pair)"


@pytest.mark.parametrize(("over", "under"), [([], []), ([1.0], [1.0, 2.0])])
def test_invalid_pairs_are_refused(over: list[float], under: list[float]) -> None:
    with pytest.raises(ValueError, match="as many"):
        paired_ratio(over, under)
