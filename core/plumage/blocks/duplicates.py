"""Second and further copies of cached blocks.

A copy is *held* while a request that computed it runs, and evictable afterwards. Which of several requests owns which
copy is not tracked: the first that ends frees one. The counts, which is what memory and events depend on, stay right.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Duplicates"]


class Duplicates:
    """Copies beyond the first, by block hash; evictable ones go oldest first."""

    def __init__(self) -> None:
        self.held = 0
        self.idle = 0
        self._held: dict[int, int] = {}
        self._idle: dict[int, int] = {}

    @property
    def total(self) -> int:
        """All copies beyond the first."""
        return self.held + self.idle

    def count(self, block: int) -> int:
        """Copies of `block` beyond the first."""
        return self._held.get(block, 0) + self._idle.get(block, 0)

    def add(self, block: int, *, held: bool) -> None:
        """One more copy. Not held means: nobody uses the first copy, so one of the two is free to go at once."""
        if held:
            self._held[block] = self._held.get(block, 0) + 1
            self.held += 1
        else:
            self._idle[block] = self._idle.get(block, 0) + 1
            self.idle += 1

    def release(self, hashes: Sequence[int]) -> None:
        """A request that used `hashes` ended: of each block with held copies, one is evictable now."""
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
        """Drop up to `blocks` evictable copies, oldest first; returns a hash per copy."""
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
