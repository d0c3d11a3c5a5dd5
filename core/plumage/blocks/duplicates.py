"""Second and further copies of cached blocks.

A copy is *held* while the request that computed it runs, and evictable afterwards. The class does not track which
request owns which copy: each request that ends frees one. Memory and events need only the counts, which are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Duplicates"]


class Duplicates:
    """Copies beyond the first, by block hash. The oldest evictable copy is evicted first."""

    def __init__(self) -> None:
        self.held = 0
        self.idle = 0
        self._held: dict[int, int] = {}
        self._idle: dict[int, int] = {}

    @property
    def total(self) -> int:
        """The number of all copies beyond the first."""
        return self.held + self.idle

    def count(self, block: int) -> int:
        """Copies of `block` beyond the first."""
        return self._held.get(block, 0) + self._idle.get(block, 0)

    def add(self, block: int, *, held: bool) -> None:
        """One more copy. held=False: no request uses the first copy, so one of the two is evictable at once."""
        if held:
            self._held[block] = self._held.get(block, 0) + 1
            self.held += 1
        else:
            self._idle[block] = self._idle.get(block, 0) + 1
            self.idle += 1

    def release(self, hashes: Sequence[int]) -> None:
        """A request that used `hashes` ended: one held copy of each of these blocks, if there is one, becomes
        evictable."""
        if not self._held:
            return
        for block in hashes:
            copies = self._held.get(block)
            if copies is None:
                continue
            if copies == 1:
                del self._held[block]
            else:
                self._held[block] = copies - 1
            self.held -= 1
            self.add(block, held=False)

    def evict(self, blocks: int) -> list[int]:
        """Drop up to `blocks` evictable copies, oldest first. Returns a hash for each copy."""
        gone: list[int] = []
        while self._idle and len(gone) < blocks:
            block, copies = next(iter(self._idle.items()))
            taken = min(copies, blocks - len(gone))
            gone.extend([block] * taken)
            if taken == copies:
                del self._idle[block]
            else:
                self._idle[block] = copies - taken
        self.idle -= len(gone)
        return gone

    def clear(self) -> None:
        """Forget all copies."""
        self.held = self.idle = 0
        self._held.clear()
        self._idle.clear()
