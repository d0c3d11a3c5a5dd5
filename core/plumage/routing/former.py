"""Who was last sent the prompt that this one goes on from, whether it still holds any of it or not.

A conversation that every cache has lost is computed anew wherever it goes. But its former home remembers how often it
came (`plumage.eviction.hotness`: frequency outlives eviction), so that there it is kept from now on, while elsewhere it
begins again as one of the many that came once. The engines' events say nothing of that: they tell what is held.

Only the ends of prompts are remembered, one entry a prompt: the next turn has the end of the last one inside it, and
what many prompts merely begin with, such as a system prompt, is nobody's home.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.interface import Query, ReplicaState

__all__ = ["FormerHomes"]

_LOOKED_AT = 64  # chunks from the end: what one turn adds
_MOST_HELD = 0.5  # of the prompt: where more is held it is the holders' scores that count


class FormerHomes:
    """loyalty: by how much dearer the former home may be and still be preferred, 0.2 for a fifth. most: prompts
    remembered, the latest."""

    __slots__ = ("_ends", "_loyalty", "_most")

    def __init__(self, loyalty: float, most: int = 65_536) -> None:
        self._loyalty = loyalty
        self._most = most
        self._ends: dict[int, int] = {}

    def of(self, query: Query) -> int | None:
        """The slot that was sent the longest known beginning of the prompt; None when none of its end is known, or
        somebody holds much of it."""
        if query.hits and max(query.hits.values()) >= _MOST_HELD * query.tokens:
            return None
        ends = self._ends
        for chunk in query.chunks[: -_LOOKED_AT - 1 : -1]:
            slot = ends.get(chunk)
            if slot is not None:
                return slot
        return None

    def prefer(self, home: int | None, replicas: Sequence[ReplicaState], scores: list[float]) -> None:
        """Lower the score of `home`, as `of` tells it, if it is one of `replicas`."""
        if home is None:
            return
        for index, replica in enumerate(replicas):
            if replica.slot == home:
                scores[index] /= 1.0 + self._loyalty

    def sent(self, chunks: Sequence[int], slot: int) -> None:
        """The prompt goes to `slot`."""
        if not chunks:
            return
        ends = self._ends
        ends.pop(chunks[-1], None)
        ends[chunks[-1]] = slot
        if len(ends) > self._most:
            del ends[next(iter(ends))]

    def forget(self, slot: int) -> None:
        """The slot's replica is gone, and what it remembered."""
        self._ends = {chunk: home for chunk, home in self._ends.items() if home != slot}
