"""Quantiles of measured values."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

__all__ = ["quantile"]

Number = TypeVar("Number", int, float)


def quantile(values: Collection[Number], share: float) -> Number:
    """One of the values: `share` of all, from 0 to 1, are below it, rounded down. ValueError without values."""
    if not values:
        raise ValueError("there is no quantile of no values")
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
