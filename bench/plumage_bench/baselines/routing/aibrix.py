"""AIBrix's `prefix-cache`: the best match among replicas that are not too busy.

If the busiest replica has over `imbalance` requests more than the idlest, it takes the least loaded. Otherwise it takes
the highest share of matched prefix with load ≤ mean + one standard deviation; without a match the fewest requests. It
has its own bounded table of prefixes.

Source: vllm-project/aibrix, pkg/plugins/gateway/algorithms/prefix_cache.go, as read in mid-2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["AIBrix"]


class AIBrix(ScoringPolicy):
    name = "AIBrix"

    def __init__(
        self, *, rng: Randomness, imbalance: float = 8, deviations: float = 1.0, index_entries: int = 200_000
    ) -> None:
        super().__init__(rng=rng)
        self._imbalance = imbalance
        self._deviations = deviations
        self._index = PrefixIndex(index_entries)

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        loads = [float(replica.routed) for replica in replicas]
        if max(loads) - min(loads) > self._imbalance:
            return loads
        matched = self._index.match(query.chunks)
        limit = self._limit(loads)
        eligible = [
            matched.get(replica.slot, 0) if load <= limit else 0 for replica, load in zip(replicas, loads, strict=True)
        ]
        best = max(eligible)
        if best == 0:
            return loads
        # Among equal matches AIBrix takes the one with fewer requests.
        return [load if match == best else inf for match, load in zip(eligible, loads, strict=True)]

    def _limit(self, loads: Sequence[float]) -> float:
        mean = sum(loads) / len(loads)
        return mean + self._deviations * sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))

    def routed(self, query: Query, choice: Choice) -> Ticket:
        self._index.insert(choice.slot, query.chunks)
        return super().routed(query, choice)

    def forget(self, slot: int) -> None:
        self._index.forget(slot)
