"""Quantiles of measured values."""

from __future__ import annotations

import random

import pytest

from plumage_bench.quantiles import quantile


def test_quantile_is_one_of_the_values() -> None:
    values = list(range(100))
    random.Random(1).shuffle(values)
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 0.99, 1.0)] == [0, 50, 95, 99, 99]
    assert quantile([3.5], 0.99) == 3.5


def test_there_is_none_of_no_values() -> None:
    with pytest.raises(ValueError, match="no quantile of no values"):
        quantile([], 0.5)
