"""Which replicas of a large fleet are worth a score.

A score costs under a microsecond, and at a thousand replicas all of them cost more than the rest of a decision. So no
more than `most` are scored: up to half of them those that hold most of the prompt, then its former home, the others
drawn from all. Replicas that hold nothing differ by what waits there, and the best of a few dozen draws is nearly the
best of all: with d draws the longest queue is ln ln n ÷ ln d + O(1) (Azar, Broder, Karlin, Upfal: Balanced Allocations,
SIAM J. Comput. 1999).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from plumage.routing.interface import Randomness, ReplicaState

__all__ = ["Shortlist"]

Some = TypeVar("Some")


class Shortlist:
    """`most`: replicas of a list, 2 or more."""

    def __init__(self, most: int, rng: Randomness) -> None:
        self._most = most
        self._rng = rng
        self._replicas: Sequence[ReplicaState] = ()
        self._by_slot: dict[int, ReplicaState] = {}

    def of(
        self, hits: Mapping[int, float], replicas: Sequence[ReplicaState], home: int | None = None
    ) -> Sequence[ReplicaState]:
        """`replicas` itself when it is no longer than `most`, else some of it, each once: first those that hold much.
        `hits`: tokens of the prompt that each slot holds. `home`: a slot that is to be among them, if it is one of
        theirs. A list that comes again must be what it was."""
        if len(replicas) <= self._most:
            return replicas
        if replicas is not self._replicas:
            self._replicas, self._by_slot = replicas, {replica.slot: replica for replica in replicas}
        known = self._by_slot
        kept = {slot: known[slot] for slot in self._deepest(hits, self._most // 2) if slot in known}
        if home in known:
            kept[home] = known[home]
        for replica in self._draw(replicas, self._most - len(kept)):
            kept[replica.slot] = replica
        return list(kept.values())

    def _deepest(self, hits: Mapping[int, float], most: int) -> Iterable[int]:
        """The slots that hold most; of equals at the bound, which can be the whole fleet, some are drawn."""
        if len(hits) <= most:
            return hits
        least = sorted(hits.values(), reverse=True)[most - 1]
        deeper = [slot for slot, tokens in hits.items() if tokens > least]
        equal = [slot for slot, tokens in hits.items() if tokens == least]
        return deeper + self._draw(equal, most - len(deeper))

    def _draw(self, things: Sequence[Some], count: int) -> list[Some]:
        """`count` of them, each as likely as any other: from a random place on, at a random distance."""
        size = len(things)
        if not count:
            return []
        start, step = self._rng.randrange(size), 1 + self._rng.randrange(size // count)
        return [things[place % size] for place in range(start, start + count * step, step)]
