"""How fast a pool's size may change: stabilisation windows and rate policies, as HorizontalPodAutoscaler has them.

Source: Kubernetes' documentation ("Configurable scaling behavior") and `horizontal.go` of 1.36, whose
corner cases apply here too. A percentage rounds in favour of the change. Replicas that were added and replicas that
were deleted within a period count for both directions. A stricter policy never reverses a direction.

The windows differ in one thing. While a metric is missing, the current size counts as a recommendation. Otherwise the
first figure after an outage would be the only one in the window and shrink the pool at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final, Literal

from plumage.api.v1alpha1.autoscaling import BehaviorSpec, ScalingRules

__all__ = ["MOST_KEPT", "Bounded", "History", "Recommendation", "ReplicaChange", "within_rate"]

MOST_KEPT: Final = 4096
"""Most recommendations and changes kept. The longest window, an hour, has 240 of them at one in 15 s. With more than
this in a window the oldest would be lost too early."""
_LONGEST = 3600.0  # seconds, of any window or period a manifest can name

Limit = Literal["Stabilized", "RateLimited"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A size that the metrics proposed, within the bounds. held: a metric was missing, so it is the former size."""

    at: float
    replicas: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """Replicas that were added (positive) or deleted (negative)."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Bounded:
    """A number of replicas, the limit that applied, and a message about it."""

    replicas: int
    limit: Limit | None = None
    message: str = ""


@dataclass(slots=True)
class History:
    """Recommendations and changes of the last hour, oldest first."""

    recommendations: deque[Recommendation] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    changes: deque[ReplicaChange] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))

    def recommend(self, recommendation: Recommendation) -> None:
        while self.recommendations and self.recommendations[0].at <= recommendation.at - _LONGEST:
            self.recommendations.popleft()
        self.recommendations.append(recommendation)

    def changed(self, change: ReplicaChange) -> None:
        while self.changes and self.changes[0].at <= change.at - _LONGEST:
            self.changes.popleft()
        self.changes.append(change)

    def stabilized(self, wanted: int, recommended: int, behavior: BehaviorSpec, now: float) -> Bounded:
        """Up to the smallest recommendation of one window, down to the largest of the other; both have the new one."""
        up, down = behavior.scale_up, behavior.scale_down
        upwards = (one.replicas for one in self._since(now - up.stabilization_window_seconds) if not one.held)
        downwards = (one.replicas for one in self._since(now - down.stabilization_window_seconds))
        lowest, highest = min(upwards, default=recommended), max(downwards, default=recommended)
        replicas = min(max(wanted, min(lowest, recommended)), max(highest, recommended))
        if replicas == recommended:
            return Bounded(replicas)
        extreme, window = ("least", up) if recommended > wanted else ("most", down)
        message = f"{replicas} is the {extreme} wanted in {window.stabilization_window_seconds} s"
        return Bounded(replicas, "Stabilized", message)

    def _since(self, after: float) -> Iterable[Recommendation]:
        return (one for one in self.recommendations if one.at > after)

    def within_rate(self, wanted: int, recommended: int, behavior: BehaviorSpec, now: float) -> Bounded:
        """The number nearest to the recommended one that the rate policies allow."""
        if recommended > wanted:
            rules: ScalingRules = behavior.scale_up
            allowed = min(recommended, max(wanted, within_rate(wanted, behavior.scale_up, +1, self.changes, now)))
        else:
            rules = behavior.scale_down
            allowed = max(recommended, min(wanted, within_rate(wanted, behavior.scale_down, -1, self.changes, now)))
        if allowed == recommended:
            return Bounded(recommended)
        return Bounded(allowed, "RateLimited", _words(rules, "scaleUp" if recommended > wanted else "scaleDown"))


def within_rate(wanted: int, rules: ScalingRules, sign: int, changes: Iterable[ReplicaChange], now: float) -> int:
    """The size that the policies of one direction (`sign`) allow now; it may lie on the other side of `wanted`."""
    if rules.select_policy == "Disabled":
        return wanted
    limits, kept = [], list(changes)
    for policy in rules.policies:
        start = wanted - sum(change.replicas for change in kept if change.at > now - policy.period_seconds)
        if policy.type == "Pods":
            limits.append(start + sign * policy.value)
        else:
            exact = start * (100 + sign * policy.value) / 100
            limits.append(ceil(exact) if sign > 0 else floor(exact))
    farthest = rules.select_policy == "Max"
    return max(limits) if farthest == (sign > 0) else min(limits)


def _words(rules: ScalingRules, direction: str) -> str:
    if rules.select_policy == "Disabled":
        return f"{direction} is disabled"
    units = {"Pods": "", "Percent": " %"}
    policies = ", ".join(f"{one.value}{units[one.type]} in {one.period_seconds} s" for one in rules.policies)
    more = f", {rules.select_policy} of them" if len(rules.policies) > 1 else ""
    return f"{direction} allows {policies}{more}"
