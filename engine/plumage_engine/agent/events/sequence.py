"""Decides whether the next event batch continues the applied ones: it detects gaps, repeats and restarts.

vLLM numbers its batches from 0 after each start of the engine. A number alone can't distinguish a repeated batch from
one of a restarted engine. So the batch's wall-clock time decides: a low number with a later time is a restart. After a
lost connection even the expected number proves nothing, because a new engine may have counted so far. So the replay
must contain the last applied batch too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

__all__ = ["SequenceCheck", "Sequencer"]


class SequenceCheck(Enum):
    NEXT = auto()  # apply it
    REPEATED = auto()  # applied before
    GAP = auto()  # batches are missing in between
    RESTARTED = auto()  # the engine restarted


class Sequencer:
    """The last batch that was applied: its number (-1 for none) and its time, None where a snapshot took its place."""

    def __init__(self) -> None:
        self.last = -1
        self.ts: float | None = None

    def judge(self, seq: int, ts: float) -> SequenceCheck:
        if seq == self.last + 1:
            return SequenceCheck.NEXT
        if seq > self.last:
            return SequenceCheck.GAP
        return SequenceCheck.RESTARTED if self.ts is not None and ts > self.ts else SequenceCheck.REPEATED

    def advance(self, seq: int, ts: float | None) -> None:
        """Notes an applied batch, or a snapshot that is valid at it."""
        self.last = seq
        self.ts = ts

    def continues(self, replayed: Sequence[tuple[int, float]]) -> bool:
        """Whether a replay that was asked for from `last` on comes from the same engine and leaves no hole.

        Before the first batch, an empty replay continues, and one that begins at batch 0. After it, only a replay that
        begins with the batch `last` itself does: an engine without that batch has restarted or forgotten it.
        """
        if self.last < 0:
            return not replayed or replayed[0][0] == 0
        if not replayed or replayed[0][0] != self.last:
            return False
        return self.ts is None or replayed[0][1] == self.ts
