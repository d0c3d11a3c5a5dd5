"""The former home of a prompt: the replica that was sent the prompt which this one continues.

A conversation usually has one future: its next turn continues the last one. `lbgr` uses this twice:
- A second copy of its history leaves the first copy unused until that is evicted. So copies cost more (`copying`).
- Any replica must compute a conversation again that every cache has evicted. But the former home has counted its uses,
  and frequency outlives eviction (`plumage.eviction.hotness_formula`). So it keeps the conversation from now on, which
  starts with one use on another replica. The engines' events do not show this: they only name cached blocks.

Only the ends of prompts are kept, one entry for each prompt: the next turn contains the end of the last one. A
beginning that many prompts continue, such as a system prompt, has no former home.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from plumage.front import Front
from plumage.routing.interface import Query, ReplicaState

__all__ = ["MOST_HELD", "FormerHomes"]

MOST_HELD = 0.5
"""Share of the prompt: if a replica caches more, the owners' scores choose among them, not the former home."""
_SEARCHED = 64  # first chunks' sizes back from the end of the cached part, or of the prompt: what a turn adds
_BRANCHES = 8  # continuations of one prompt: after that it is a prefix that many share

End = tuple[int, int]
"""The slot that was sent the prompt, and how often the prompt was continued or sent again."""


class FormerHomes:
    """loyalty: the higher cost at which the former home is still preferred; 0.2 is a fifth.
    most: the number of prompts kept; the latest ones.
    """

    __slots__ = ("_ends", "_found", "_front", "_loyalty", "_most")

    def __init__(self, loyalty: float, most: int = 65_536) -> None:
        self._loyalty = loyalty
        self._most = most
        self._ends: dict[int, End] = {}
        self._front = Front(self._ends, most)
        self._found: tuple[Sequence[int], int] | None = None

    def of(self, query: Query, held: float) -> int | None:
        """The slot that was sent the longest known prompt which this one continues; None if none is known.
        held: tokens of the prompt that are cached on the best owner.
        `sent` reads what this found: call them in pairs.
        """
        chunks, ends = query.chunks, self._ends
        self._found = None
        share = held / query.tokens if 0.0 < MOST_HELD * query.tokens <= held else 1.0
        first, last = _searched(len(chunks), share, query.ends)
        known = next(filter(ends.__contains__, reversed(chunks[first:last])), None)  # a request searches dozens
        if known is None:
            return None
        self._found = (chunks, known)
        slot, continued = ends[known]
        return slot if continued < _BRANCHES else None

    def prefer(self, home: int | None, replicas: Sequence[ReplicaState], scores: list[float]) -> None:
        """Lower the score of `home`, a slot from `of`, if it is one of `replicas`."""
        if home is None:
            return
        for index, replica in enumerate(replicas):
            if replica.slot == home:
                scores[index] /= 1.0 + self._loyalty

    def sent(self, chunks: Sequence[int], slot: int) -> None:
        """The prompt is sent to `slot`."""
        if not chunks:
            return
        ends = self._ends
        if self._found is not None and self._found[0] is chunks:
            end = self._found[1]
            where, continued = ends[end]
            ends[end] = (where, continued + 1)
        self._found = None
        _, continued = ends.pop(chunks[-1], (slot, 0))
        self._front.left(chunks[-1])
        ends[chunks[-1]] = (slot, continued)
        if len(ends) > self._most:
            self._front.drop()

    def forget(self, slot: int) -> None:
        """Remove all prompts of a slot whose replica was deleted."""
        self._ends = {chunk: end for chunk, end in self._ends.items() if end[0] != slot}
        self._front = Front(self._ends, self._most)
        self._found = None


def _searched(chunks: int, share: float, ends: Sequence[int]) -> tuple[int, int]:
    """The first and the last chunk to search, of `chunks`. The last one ends at `share` of the prompt."""
    if not ends:
        last = min(int(share * chunks + 1.5), chunks)
        return max(last - _SEARCHED, 0), last
    size = share * ends[chunks]
    last = bisect_right(ends, size, 0, chunks)
    if 2.0 * size >= ends[last - 1] + ends[last]:
        last = min(last + 1, chunks)
    return bisect_left(ends, ends[last] - _SEARCHED * ends[1], 0, last), last
