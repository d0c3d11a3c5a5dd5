"""Policies that look at load alone, or at nothing: the floor that prefix-aware routing is measured against.

Sources: PowerOfTwo is Mitzenmacher's, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001;
PrefixAware routes by the longest match, as does `prefixaware` of vllm-project/production-stack, but breaks ties by
load (see `production_stack`). The rest are folklore.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState

__all__ = ["LeastLoad", "PowerOfTwo", "PrefixAware", "Random", "RoundRobin", "in_flight"]


def in_flight(replica: ReplicaState) -> float:
    """Requests there: the engine's own count where it is larger, as other routers may feed it too."""
    return max(replica.routed, replica.running + replica.waiting)


class Random(ScoringPolicy):
    """Each candidate with equal chance."""

    name = "Random"

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        return Choice(replicas[self._rng.randrange(len(replicas))].slot)


class RoundRobin(ScoringPolicy):
    """The candidates in turn, by slot number, so that one that comes or goes does not reset the turn."""

    name = "RoundRobin"

    def __init__(self, *, rng: Randomness) -> None:
        super().__init__(rng=rng)
        self._last = -1

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        slots = [replica.slot for replica in replicas]
        later = [slot for slot in slots if slot > self._last]
        self._last = min(later or slots)
        return Choice(self._last)


class LeastLoad(ScoringPolicy):
    """Fewest requests in flight."""

    name = "LeastLoad"

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        return [in_flight(replica) for replica in replicas]


class PowerOfTwo(ScoringPolicy):
    """The less loaded of two drawn at random: nearly as even as LeastLoad, and stale load does not herd."""

    name = "PowerOfTwo"

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].slot)
        first = self._rng.randrange(len(replicas))
        second = self._rng.randrange(len(replicas) - 1)
        pair = (replicas[first], replicas[second if second < first else second + 1])
        return Choice(min(pair, key=in_flight).slot)


class PrefixAware(ScoringPolicy):
    """Most tokens of the prompt's prefix held, by the directory; least load among equals. Ignores queues otherwise."""

    name = "PrefixAware"

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        # A token held outweighs any load: loads stay far below 10^6, so one tuple's worth of order fits in a float.
        return [in_flight(replica) * 1e-6 - query.hits.get(replica.slot, 0.0) for replica in replicas]
