"""The directory's writer without the sending, to measure what an agent computes."""

from __future__ import annotations

from collections.abc import Iterable

from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.schema import Change

__all__ = ["UnsentWriter"]


class UnsentWriter:
    """Records the chunks that a writer would send."""

    def __init__(self) -> None:
        self._ledger = HeldChunks()

    def publish(self, changes: Iterable[Change]) -> None:
        self._ledger.record(changes)

    def clear(self) -> None:
        self._ledger.clear()
