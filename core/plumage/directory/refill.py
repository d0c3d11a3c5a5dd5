"""A snapshot on its way into a mirror, unseen until it is whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from plumage.errors import StateError

if TYPE_CHECKING:
    from plumage.directory.mirror import Change, Mirror

__all__ = ["Refill"]


class Refill:
    """One snapshot on its way into a mirror: `add` pieces, then `commit`; `abandon` where it can't be finished."""

    def __init__(self, mirror: Mirror, slot: int, lane: int) -> None:
        self._mirror, self._slot, self._lane = mirror, slot, lane
        self._open = True

    def add(self, changes: Iterable[Change]) -> None:
        if not self._open:
            raise StateError("this refill was committed or abandoned; start another with mirror.refill(slot)")
        self._mirror._write(self._lane, changes)

    def commit(self, *, reborn: bool = False) -> None:
        """The slot holds what was added, and what is still expected of it; the cache of a `reborn` engine began empty,
        so what was expected of its former life has ended."""
        if self._open:
            self._open = False
            self._mirror._replace(self._slot, self._lane, reborn)

    def abandon(self) -> None:
        if self._open:
            self._open = False
            self._mirror._close(self._lane)
