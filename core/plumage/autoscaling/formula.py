"""How many replicas one figure asks for: the formula of Kubernetes' HorizontalPodAutoscaler, ceil(n · value ÷ target).

Source: its documentation ("Algorithm details") and `replica_calculator.go` of 1.36. This implementation
is stricter in one case. A figure above its target never asks for fewer replicas than are wanted now, nor a figure below
it for more. In Kubernetes it can, while wanted pods do not exist yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

__all__ = ["Tolerance", "of_pool", "per_replica", "whole"]

_NOISE = 1e-9  # 10 · 1.1 is 11.000000000000002, which must not add a twelfth replica


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a ratio may be above or below 1 without a change: 0.1 is a tenth."""

    up: float = 0.1
    down: float = 0.1

    def covers(self, ratio: float) -> bool:
        return 1.0 - self.down - _NOISE <= ratio <= 1.0 + self.up + _NOISE


def whole(amount: float) -> int:
    """The number of replicas, rounded up."""
    return ceil(amount - _NOISE)


def of_pool(value: float, target: float, *, wanted: int, ready: int, tolerance: Tolerance) -> int:
    """Returns the replicas for one figure of the whole pool, such as a latency. `ready`: the number of replicas that it
    was measured on."""
    ratio = value / target
    if tolerance.covers(ratio):
        return wanted
    return _same_way(ratio, whole(ratio * ready), wanted)


def per_replica(values: Sequence[float], target: float, *, wanted: int, unknown: int, unready: int,
                tolerance: Tolerance) -> int:  # fmt: skip
    """Returns the replicas for an amount that each replica should have.

    values: of the ready replicas that reported one; at least one. unknown: ready replicas without a value.
    unready: replicas that are not ready or do not exist yet.

    An unknown value is assumed cautiously: the target if the others would shrink the pool, 0 if they would grow it.
    An unready replica counts with 0 if the others would grow the pool.
    """
    ratio = sum(values) / len(values) / target
    if unknown == 0 and (ratio <= 1.0 or unready == 0):
        if tolerance.covers(ratio):
            return wanted
        return _same_way(ratio, whole(ratio * len(values)), wanted)
    count, total = len(values), sum(values)
    if ratio < 1.0:
        count, total = count + unknown, total + unknown * target
    elif ratio > 1.0:
        count += unknown + unready
    cautious = total / count / target
    if tolerance.covers(cautious) or (ratio < 1.0 < cautious) or (cautious < 1.0 < ratio):
        return wanted
    return _same_way(cautious, whole(cautious * count), wanted)


def _same_way(ratio: float, proposed: int, wanted: int) -> int:
    return max(proposed, wanted) if ratio > 1.0 else min(proposed, wanted)
