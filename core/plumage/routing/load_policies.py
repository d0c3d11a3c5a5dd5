"""Policies that use only load, or nothing, and `PrefixAware`: the least that LBGR must surpass.

Sources:

- PowerOfTwo: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001.
- PrefixAware: the longest match, as `prefixaware` of vllm-project/production-stack. Ties go by load, other than there
  (see `production_stack`).

The others have no single source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState

__all__ = ["LeastLoad", "PowerOfTwo", "PrefixAware", "Random", "RoundRobin", "in_flight"]


def in_flight(replica: ReplicaState) -> float:
    """Requests in flight: this router's count, or the engine's if that is larger, since other routers send too."""
    return max(replica.routed, replica.running + replica.waiting)


class Random(ScoringPolicy):
    """Draws a candidate; all are equally likely."""

    name: ClassVar[str] = "Random"

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        return Choice(replicas[self._rng.randrange(len(replicas))].slot)


class RoundRobin(ScoringPolicy):
    """Takes the candidates in turn, by slot number. A replica that is added or deleted does not reset the turn."""

    name: ClassVar[str] = "RoundRobin"

    def __init__(self, *, rng: Randomness) -> None:
        super().__init__(rng=rng)
        self._last = -1

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        slots = [replica.slot for replica in replicas]
        later = [slot for slot in slots if slot > self._last]
        self._last = min(later or slots)
        return Choice(self._last)


class LeastLoad(ScoringPolicy):
    """Takes the replica with the fewest requests in flight."""

    name: ClassVar[str] = "LeastLoad"

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        return [in_flight(replica) for replica in replicas]


class PowerOfTwo(ScoringPolicy):
    """Draws two candidates and takes the less loaded one. The load is nearly as even as with LeastLoad, and stale
    reports do not send all routers to one replica."""

    name: ClassVar[str] = "PowerOfTwo"

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].slot)
        first = self._rng.randrange(len(replicas))
        second = self._rng.randrange(len(replicas) - 1)
        pair = (replicas[first], replicas[second if second < first else second + 1])
        return Choice(min(pair, key=in_flight).slot)


class PrefixAware(ScoringPolicy):
    """Takes the replica that holds most of the prompt's prefix, by the directory. Load decides between equals only."""

    name: ClassVar[str] = "PrefixAware"

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        # One held token outweighs any load: loads stay far below 10^6, so both fit into one float.
        return [in_flight(replica) * 1e-6 - query.hits.get(replica.slot, 0.0) for replica in replicas]
