"""What a policy without feedback shares: it scores each candidate and learns nothing from outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage.routing.ties import lowest

__all__ = ["ScoringPolicy"]


class ScoringPolicy:
    """Subclasses give `scores` (lower is better, in candidate order) and may watch where requests went."""

    name: ClassVar[str] = "Scoring"

    def __init__(self, *, rng: Randomness) -> None:
        self._rng = rng

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> Sequence[float]:
        return [0.0] * len(replicas)

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        return lowest(replicas, self.scores(query, replicas), self._rng)

    def routed(self, query: Query, choice: Choice) -> Ticket:
        return Ticket(choice.slot, query.now, query.tokens, query.hits.get(choice.slot, 0.0))

    def first_token(self, ticket: Ticket, now: float) -> None:
        return

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        return

    def failed(self, ticket: Ticket, now: float) -> None:
        return

    def forget(self, slot: int) -> None:
        return
