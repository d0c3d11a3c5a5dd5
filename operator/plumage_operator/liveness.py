"""Whether the operator still does its work: each loop beats, and one that falls silent fails the liveness probe.

kopf's watches may freeze or die while the process lives on (nolar/kopf#1120, #1276); a process that only answers HTTP
would look healthy for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from plumage_operator.queue import WorkQueue

__all__ = ["Heartbeats", "Progress"]

_QUEUE: Final = "queue"
_SILENCE: Final = 180.0  # seconds; a look takes at most two thirds of it


class Heartbeats:
    """clock: monotonic seconds. Each name has its own longest silence, in seconds, from when it is expected."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._beats: dict[str, tuple[float, float]] = {}

    def expect(self, name: str, silence: float) -> None:
        """From now on `name` must beat at least that often."""
        self._beats[name] = (self._clock(), silence)

    def beat(self, name: str) -> None:
        """`name` does its work."""
        _, silence = self._beats[name]
        self._beats[name] = (self._clock(), silence)

    def stale(self) -> list[str]:
        """What fell silent, in words; empty while all is well."""
        now = self._clock()
        return [
            f"{name}: no sign of life for {now - last:.0f} s, which is more than {silence:.0f} s"
            for name, (last, silence) in self._beats.items()
            if now - last > silence
        ]


class Progress:
    """Whether a queue is worked off, by workers that may have died: none is due, or a look ended since the last time.
    That pools wait long is no reason to end: the next process would look at all of them from the start. An alert tells
    people (PlumagePoolsWait)."""

    def __init__(self, queue: WorkQueue[Any], heartbeats: Heartbeats) -> None:
        self._queue = queue
        self._heartbeats = heartbeats
        self._ended = queue.ended
        heartbeats.expect(_QUEUE, _SILENCE)

    def beat(self) -> None:
        """Call it every few seconds."""
        if self._queue.ended != self._ended or self._queue.oldest == 0.0:
            self._heartbeats.beat(_QUEUE)
        self._ended = self._queue.ended
