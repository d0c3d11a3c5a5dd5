"""A routing policy of your own: long prompts go where most of them is cached, short ones where the queue is short."""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing import Query, Randomness, ReplicaState
from plumage.routing.base import ScoringPolicy


class LongPromptsStay(ScoringPolicy):
    """long: tokens from which a prompt counts as long."""

    name = "LongPromptsStay"

    def __init__(self, *, rng: Randomness, long: int = 2000) -> None:
        super().__init__(rng=rng)
        self._long = long

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        """One score for each replica; the lowest wins, and ties are drawn."""
        weight = 0.01 if query.tokens >= self._long else 0.0
        return [replica.routed - weight * query.hits.get(replica.slot, 0.0) for replica in replicas]
