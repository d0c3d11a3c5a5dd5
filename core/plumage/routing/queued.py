"""What a replica will hold when a request's turn comes.

Engines' events say what a cache holds now. Behind a long queue that is of little use. Blocks of now are evicted before
a new request's turn, and other blocks are computed for the requests before it. Then requests of one document spread
over the fleet, each replica computes the document again, and the queues grow.

So this module stores the prompts in long queues. A prompt with the same beginning counts as held there. Other held
blocks, behind such a queue, count by the share that earlier answers still found. A chain is stored at sizes that grow
by a fifth. So a write or a look-up takes about thirty steps, and finds at least five sixths of a shared beginning.
While all queues are short, nothing is stored or looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf

from plumage.routing.interface import Query

__all__ = ["QueuedPrefixes"]

_GROWTH = 1.2
_MOST_SIZE = 1 << 20  # first chunks' sizes
_DOUBTED = 8.0  # 1k tokens: weight of the prior, which is that half of the held tokens are still found
_MEMORY = 0.98  # of each graded answer


def _sizes() -> Iterator[int]:
    size = 1
    while size <= _MOST_SIZE:
        yield size
        size = max(size + 1, int(size * _GROWTH))


_SIZES = tuple(_sizes())


class QueuedPrefixes:
    """The prompts in long queues. long: seconds of work that make a queue long. most: the bound of stored entries."""

    __slots__ = ("_depths", "_ends", "_expiring", "_found", "_held", "_last", "_long", "_most", "_until")

    def __init__(self, long: float, most: int = 200_000) -> None:
        self._long = long
        self._most = most
        self._until: dict[int, dict[int, float]] = {}  # slot → chunk → turn of the last request that computes it
        self._expiring: deque[tuple[float, int, int]] = deque()  # turn, slot, chunk
        self._last = -inf  # the latest turn of all requests
        self._held, self._found = _DOUBTED, _DOUBTED / 2.0
        self._ends: Sequence[int] = ()
        self._depths: Sequence[int] = _SIZES

    def any_at(self, now: float) -> bool:
        """Whether a request waits in a long queue, by its predicted turn."""
        return now < self._last

    def sent(self, query: Query, slot: int, wait: float) -> None:
        """Store a prompt that was sent to `slot`, behind `wait` seconds of work."""
        chunks, now = query.chunks, query.now
        if wait > self._long:
            turn = now + wait
            self._last = max(self._last, turn)
            until = self._until.setdefault(slot, {})
            for depth in self._noted(query.ends):
                if depth > len(chunks):
                    break
                chunk = chunks[depth - 1]
                until[chunk] = max(turn, until.get(chunk, 0.0))
                self._expiring.append((turn, slot, chunk))
        if self._expiring:
            self._expire(now)

    def expected(self, query: Query, waits: dict[int, float]) -> dict[int, float]:
        """slot → tokens of the prompt that it will hold at the request's turn. waits: slot → seconds of work."""
        chunks, ends, now, long, survival = query.chunks, query.ends, query.now, self._long, self.survival
        count = len(chunks)
        per_unit = query.tokens / (ends[count] if ends and count else max(count, 1))
        depths = [depth for depth in self._noted(ends) if depth <= count]
        noted = [chunks[depth - 1] for depth in depths]
        now_held, untils = dict(query.hits), self._until  # a plain dictionary is read faster by compiled code
        hits: dict[int, float] = {}
        for slot, wait in waits.items():
            held = now_held.get(slot, 0.0)
            if wait > long:
                held *= survival
                until = untils.get(slot)
                if until:
                    place = _deepest(until, noted, now)
                    if place >= 0:
                        depth = depths[place]
                        shared = per_unit * (ends[depth] if ends else depth)
                        if shared > held:
                            held = shared
            if held > 0.0:
                hits[slot] = held
        return hits

    @property
    def survival(self) -> float:
        """The share of held tokens that a request behind a long queue still finds."""
        return self._found / self._held

    def graded(self, held: float, found: float) -> None:
        """Learn from one answer behind a long queue: thousand tokens held when it joined, and found at its turn."""
        self._held = self._held * _MEMORY + held
        self._found = self._found * _MEMORY + min(found, held)

    def forget(self, slot: int) -> None:
        """Remove the queue of a slot whose replica was deleted."""
        self._until.pop(slot, None)

    def _noted(self, ends: Sequence[int]) -> Sequence[int]:
        """The numbers of the chunks that are stored: the last one that ends at or before each of `_SIZES`."""
        if ends is not self._ends:
            self._ends = ends
            sizes = (bisect_right(ends, size * ends[1]) - 1 for size in _SIZES) if ends else _SIZES
            self._depths = tuple(dict.fromkeys(sizes))
        return self._depths

    def _expire(self, now: float) -> None:
        """Drop leading entries whose turn is over, and the oldest ones above the bound."""
        expiring = self._expiring
        while expiring and (expiring[0][0] <= now or len(expiring) > self._most):
            turn, slot, chunk = expiring.popleft()
            until = self._until.get(slot)
            if until is not None and until.get(chunk, 0.0) <= turn:
                until.pop(chunk, None)


def _deepest(until: dict[int, float], noted: list[int], now: float) -> int:
    """The place in `noted` of the deepest chunk that a queued request has; -1 for none. A request with a chunk has all
    chunks before it, so half of the places are left after each look-up. Where the bound dropped a request's first
    chunks, a shallower place may be found."""
    if not noted or until.get(noted[0], 0.0) <= now:
        return -1
    low, high = 0, len(noted)
    while high - low > 1:
        middle = (low + high) // 2
        if until.get(noted[middle], 0.0) > now:
            low = middle
        else:
            high = middle
    return low
