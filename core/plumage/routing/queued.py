"""What a replica holds when a request's turn comes, where that is not what it holds now.

Engines' events tell what a cache holds now. Behind a long queue that says little: blocks that are held now are evicted
before a new request's turn, and blocks that are not are computed for the requests before it. Requests of one document
then spread over the fleet, each replica computes the document again, and the queues grow.

So the prompts in long queues are noted. A prompt that begins like one of them counts as held there; what is held
otherwise, behind such a queue, counts by the share that earlier answers still found. A chain is noted at sizes that
grow by a fifth: some thirty steps for a note or a lookup, and at least five sixths of what two prompts share is found.
While queues are short nothing is noted and nothing is looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import inf

from plumage.routing.interface import Query

__all__ = ["QueuedPrefixes"]

_GROWTH = 1.2
_MOST_SIZE = 1 << 20  # first chunks' sizes
_DOUBTED = 8.0  # 1k tokens: what the prior is worth, by which half of what is held is still found
_MEMORY = 0.98  # of each graded answer


def _sizes() -> Iterator[int]:
    size = 1
    while size <= _MOST_SIZE:
        yield size
        size = max(size + 1, int(size * _GROWTH))


_SIZES = tuple(_sizes())


class QueuedPrefixes:
    """long: seconds of work from which on a queue is long. most: notes kept, the latest."""

    __slots__ = ("_depths", "_ends", "_expiring", "_found", "_held", "_last", "_long", "_most", "_until")

    def __init__(self, long: float, most: int = 200_000) -> None:
        self._long = long
        self._most = most
        self._until: dict[tuple[int, int], float] = {}  # (chunk, slot): the turn of the last request that computes it
        self._expiring: deque[tuple[float, tuple[int, int]]] = deque()
        self._last = -inf  # the latest turn of any
        self._held, self._found = _DOUBTED, _DOUBTED / 2.0
        self._ends: Sequence[int] = ()
        self._depths: Sequence[int] = _SIZES

    def any_at(self, now: float) -> bool:
        """Whether a request waits in a long queue, as far as its turn was predicted."""
        return now < self._last

    def sent(self, query: Query, slot: int, wait: float) -> None:
        """The prompt goes to `slot`, and has `wait` seconds of work before it."""
        chunks, now = query.chunks, query.now
        if wait > self._long:
            turn = now + wait
            self._last = max(self._last, turn)
            for depth in takewhile(len(chunks).__ge__, self._noted(query.ends)):
                key = (chunks[depth - 1], slot)
                self._until[key] = max(turn, self._until.get(key, 0.0))
                self._expiring.append((turn, key))
        if self._expiring:
            self._expire(now)

    def expected(self, query: Query, waits: Mapping[int, float]) -> dict[int, float]:
        """slot → tokens of the prompt that it holds at the request's turn, of the slots of `waits`: seconds of work."""
        count, ends = len(query.chunks), query.ends
        per_unit = query.tokens / (ends[count] if ends and count else max(count, 1))
        hits = {}
        for slot, wait in waits.items():
            held = query.hits.get(slot, 0.0)
            if wait > self._long:
                depth = self._depth(query, slot)
                held = max(held * self.survival, per_unit * (ends[depth] if ends else depth))
            if held:
                hits[slot] = held
        return hits

    @property
    def survival(self) -> float:
        """Share of what is held that a request behind a long queue still finds."""
        return self._found / self._held

    def graded(self, held: float, found: float) -> None:
        """Of so many thousand tokens that were held when a request joined a long queue it found so many."""
        self._held = self._held * _MEMORY + held
        self._found = self._found * _MEMORY + min(found, held)

    def forget(self, slot: int) -> None:
        """The slot's replica is gone, with its queue."""
        self._until = {key: turn for key, turn in self._until.items() if key[1] != slot}

    def _depth(self, query: Query, slot: int) -> int:
        """Leading chunks that a request in the slot's queue has too."""
        chunks, found, until = query.chunks, 0, self._until
        for depth in takewhile(len(chunks).__ge__, self._noted(query.ends)):
            if until.get((chunks[depth - 1], slot), 0.0) <= query.now:
                break
            found = depth
        return found

    def _noted(self, ends: Sequence[int]) -> Sequence[int]:
        """The numbers of the chunks that are noted: those that end at `_SIZES`, or before."""
        if ends is not self._ends:
            self._ends = ends
            sizes = (bisect_right(ends, size * ends[1]) - 1 for size in _SIZES) if ends else _SIZES
            self._depths = tuple(dict.fromkeys(sizes))
        return self._depths

    def _expire(self, now: float) -> None:
        """Drop notes of requests whose turn is over, as far as they are in front."""
        expiring, until = self._expiring, self._until
        while expiring and (expiring[0][0] <= now or len(expiring) > self._most):
            turn, key = expiring.popleft()
            if until.get(key, 0.0) <= turn:
                until.pop(key, None)
