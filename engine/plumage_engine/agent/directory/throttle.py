"""Chooses which chunks to publish when an engine stores more than routers can use.

Up to `rate` new chunks a second all changes pass. Above it a new chunk passes only when it was seen before, because
most chunks of a busy engine belong to one request only. Withheld chunks follow when there is room, if they are still
held. The clock is an argument; memory is bounded.

Removals always pass. The directory's writer ignores those of unpublished chunks. Changes are delayed, never altered.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.directory.schema import Change

__all__ = ["Throttle"]


class Throttle:
    """A token bucket over new chunks; two generations of seen ones, so that forgetting needs no clock."""

    def __init__(self, rate: float, remembered: int = 200_000) -> None:
        self.withheld = 0  # chunks held back so far
        self._rate = rate
        self._room = rate
        self._at = 0.0
        self._remembered = remembered
        self._back: dict[int, Change] = {}
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()

    def __len__(self) -> int:
        """Chunks held back now."""
        return len(self._back)

    def clear(self) -> None:
        self._back.clear()

    def pass_on(self, changes: Sequence[Change], now: float) -> Sequence[Change]:
        """The changes that may be published now, with withheld ones that there is room for."""
        self._refill(now)
        if not self._back and self._room >= len(changes):
            self._room -= sum(change.tier != 0 for change in changes)
            return changes
        out = [change for change in changes if self._passes(change)]
        while self._back and self._room >= 1.0:
            self._room -= 1.0
            out.append(self._back.pop(next(iter(self._back))))
        return out

    def _refill(self, now: float) -> None:
        """Adds a second's worth at most, so that a quiet minute allows no burst of sixty seconds."""
        self._room = min(self._rate, self._room + max(0.0, now - self._at) * self._rate)
        self._at = now

    def _passes(self, change: Change) -> bool:
        if change.tier == 0:
            self._back.pop(change.chunk, None)
            return True
        if self._room >= 1.0:
            self._room -= 1.0
        elif not self._was_seen(change.chunk):
            self._withhold(change)
            return False
        self._back.pop(change.chunk, None)
        return True

    def _was_seen(self, chunk: int) -> bool:
        if chunk in self._seen or chunk in self._seen_before:
            return True
        if len(self._seen) >= self._remembered:
            self._seen_before, self._seen = self._seen, set()
        self._seen.add(chunk)
        return False

    def _withhold(self, change: Change) -> None:
        self.withheld += 1
        if len(self._back) >= self._remembered:
            del self._back[next(iter(self._back))]
        self._back[change.chunk] = change
