"""How fast a pool's size may change: stabilisation windows and rate policies, as HorizontalPodAutoscaler has them.

Source: Kubernetes' documentation ("Configurable scaling behavior") and `horizontal.go` of 1.36, whose corner cases hold
here as well: a percentage rounds in favour of the change (upwards up, downwards down); what came and what went within a
period both count for both directions; a tightened policy never turns a direction round.

The windows differ in one thing. While a metric is missing, the current size counts as a wish. Otherwise the first
figure after an outage would be the only one in the window and shrink the pool at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final, Literal

from plumage.api.v1alpha1.autoscaling import BehaviorSpec, ScalingRules

__all__ = ["MOST_KEPT", "Bounded", "Change", "History", "Wish", "within_rate"]

MOST_KEPT: Final = 4096
"""Wishes and changes kept. The longest window, an hour, has 240 wishes of 15 s; more looks than this a window would let
old wishes fall out early."""
_LONGEST = 3600.0  # seconds, of any window or period a manifest can name

Limit = Literal["Stabilized", "RateLimited"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the metrics asked for at a time. held: some metric was missing, and `replicas` is the size there was."""

    at: float
    replicas: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class Change:
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
    """Wishes and changes of the last hour, oldest first."""

    wishes: deque[Wish] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))

    def wish(self, wish: Wish) -> None:
        while self.wishes and self.wishes[0].at <= wish.at - _LONGEST:
            self.wishes.popleft()
        self.wishes.append(wish)

    def changed(self, change: Change) -> None:
        while self.changes and self.changes[0].at <= change.at - _LONGEST:
            self.changes.popleft()
        self.changes.append(change)

    def stabilized(self, wanted: int, wish: int, behavior: BehaviorSpec, now: float) -> Bounded:
        """Up to the smallest wish of the one window, down to the largest of the other, `wish` among them."""
        up, down = behavior.scale_up, behavior.scale_down
        upwards = (w.replicas for w in self._since(now - up.stabilization_window_seconds) if not w.held)
        downwards = (w.replicas for w in self._since(now - down.stabilization_window_seconds))
        lowest, highest = min(upwards, default=wish), max(downwards, default=wish)
        replicas = min(max(wanted, min(lowest, wish)), max(highest, wish))
        if replicas == wish:
            return Bounded(replicas)
        extreme, window = ("least", up) if wish > wanted else ("most", down)
        message = f"{replicas} is the {extreme} wanted in {window.stabilization_window_seconds} s"
        return Bounded(replicas, "Stabilized", message)

    def _since(self, after: float) -> Iterable[Wish]:
        return (wish for wish in self.wishes if wish.at > after)

    def within_rate(self, wanted: int, wish: int, behavior: BehaviorSpec, now: float) -> Bounded:
        """The number nearest to the wish that the rate policies allow."""
        if wish > wanted:
            rules: ScalingRules = behavior.scale_up
            allowed = min(wish, max(wanted, within_rate(wanted, behavior.scale_up, +1, self.changes, now)))
        else:
            rules = behavior.scale_down
            allowed = max(wish, min(wanted, within_rate(wanted, behavior.scale_down, -1, self.changes, now)))
        if allowed == wish:
            return Bounded(wish)
        return Bounded(allowed, "RateLimited", _words(rules, "scaleUp" if wish > wanted else "scaleDown"))


def within_rate(wanted: int, rules: ScalingRules, sign: int, changes: Iterable[Change], now: float) -> int:
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
