"""The former home of a prompt: the replica that got the prompt's beginning last, whether its cache still has it or not.

Any replica must compute a conversation again that every cache has evicted. But the former home has counted its uses
(`plumage.eviction.hotness`: frequency outlives eviction), so it keeps the conversation from now on. On another replica
the conversation starts with one use. The engines' events do not show this, since they only name cached blocks.

Only the ends of prompts are kept, one entry for each prompt: the next turn contains the end of the last one. A
beginning that many prompts share, such as a system prompt, has no former home.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.interface import Query, ReplicaState

__all__ = ["FormerHomes"]

_LOOKED_AT = 64  # chunks from the end: what one turn adds
_MOST_CACHED = 0.5  # of the prompt: if more is cached, the owners' scores count


class FormerHomes:
    """loyalty: the higher cost at which the former home is still preferred; 0.2 is a fifth. most: the number of prompts
    kept; the latest ones."""

    __slots__ = ("_ends", "_loyalty", "_most")

    def __init__(self, loyalty: float, most: int = 65_536) -> None:
        self._loyalty = loyalty
        self._most = most
        self._ends: dict[int, int] = {}

    def of(self, query: Query) -> int | None:
        """The slot that was sent the longest known beginning of the prompt; None when none of its end is known, or
        a replica caches much of it."""
        if query.hits and max(query.hits.values()) >= _MOST_CACHED * query.tokens:
            return None
        ends = self._ends
        for chunk in query.chunks[: -_LOOKED_AT - 1 : -1]:
            slot = ends.get(chunk)
            if slot is not None:
                return slot
        return None

    def prefer(self, home: int | None, replicas: Sequence[ReplicaState], scores: list[float]) -> None:
        """Lower the score of `home`, the result of `of`, if it is one of `replicas`."""
        if home is None:
            return
        for index, replica in enumerate(replicas):
            if replica.slot == home:
                scores[index] /= 1.0 + self._loyalty

    def sent(self, chunks: Sequence[int], slot: int) -> None:
        """The router sends the prompt to `slot`."""
        if not chunks:
            return
        ends = self._ends
        ends.pop(chunks[-1], None)
        ends[chunks[-1]] = slot
        if len(ends) > self._most:
            del ends[next(iter(ends))]

    def forget(self, slot: int) -> None:
        """The slot's replica was deleted with its counts."""
        self._ends = {chunk: home for chunk, home in self._ends.items() if home != slot}
