"""Which replicas of a large fleet are scored.

A score takes less than a microsecond, but at a thousand replicas all scores take longer than the rest of a decision. So
at most `most` replicas are scored. Up to half are those that hold most of the prompt; then its former home; the others
are drawn from all. Replicas that hold nothing differ only by their queues, and the best of a few dozen draws is nearly
the best of all. With d draws the longest queue is ln ln n ÷ ln d + O(1) (Azar, Broder, Karlin, Upfal: Balanced
Allocations, SIAM J. Comput. 1999).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from plumage.routing.interface import Randomness, ReplicaState

__all__ = ["Shortlist"]

Some = TypeVar("Some")


class Shortlist:
    """Chooses the replicas to score. most: the bound of a list, at least 2."""

    def __init__(self, most: int, rng: Randomness) -> None:
        self._most = most
        self._rng = rng
        self._replicas: Sequence[ReplicaState] = ()
        self._by_slot: dict[int, ReplicaState] = {}

    def of(
        self, hits: Mapping[int, float], replicas: Sequence[ReplicaState], home: int | None = None
    ) -> Sequence[ReplicaState]:
        """`replicas` itself if it has at most `most` entries; otherwise some of them, each once, largest hits first.

        hits: slot → tokens of the prompt that it holds. home: a slot to include if it is among `replicas`.
        The same list object must have the same content at each call.
        """
        if len(replicas) <= self._most:
            return replicas
        known = self._known(replicas)
        kept = {slot: known[slot] for slot in self._deepest(hits, self._most // 2) if slot in known}
        if home in known:
            kept[home] = known[home]
        for replica in self._draw(replicas, self._most - len(kept)):
            kept[replica.slot] = replica
        return list(kept.values())

    def most_held(self, hits: Mapping[int, float], replicas: Sequence[ReplicaState]) -> float:
        """The most tokens that one of `replicas` holds; 0 if none holds any."""
        if len(replicas) <= self._most:
            return max([hits[replica.slot] for replica in replicas if replica.slot in hits], default=0.0)
        known = self._known(replicas)
        return max([tokens for slot, tokens in hits.items() if slot in known], default=0.0)

    def _known(self, replicas: Sequence[ReplicaState]) -> dict[int, ReplicaState]:
        """`replicas` by slot."""
        if replicas is not self._replicas:
            self._replicas, self._by_slot = replicas, {replica.slot: replica for replica in replicas}
        return self._by_slot

    def _deepest(self, hits: Mapping[int, float], most: int) -> Iterable[int]:
        """The slots that hold most. Equals at the bound, which may be the whole fleet, are drawn."""
        if len(hits) <= most:
            return hits
        least = sorted(hits.values(), reverse=True)[most - 1]
        deeper = [slot for slot, tokens in hits.items() if tokens > least]
        equal = [slot for slot, tokens in hits.items() if tokens == least]
        return deeper + self._draw(equal, most - len(deeper))

    def _draw(self, things: Sequence[Some], count: int) -> list[Some]:
        """Draw `count` of `things`, all equally likely: from a random start, at a random distance."""
        size = len(things)
        if not count:
            return []
        start, step = self._rng.randrange(size), 1 + self._rng.randrange(size // count)
        return [things[place % size] for place in range(start, start + count * step, step)]
