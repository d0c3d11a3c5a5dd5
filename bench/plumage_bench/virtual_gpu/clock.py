"""The time of a virtual device: the machine's clock, or its own."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "VirtualClock", "WallClock"]


class Clock(Protocol):
    """Seconds from an arbitrary start. virtual: only this device advances it."""

    virtual: bool

    def now(self) -> float: ...

    def wait_until(self, when: float) -> None:
        """Return at `when`, or at once if that has passed."""
        ...


class WallClock:
    """Sleeps."""

    virtual = False

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, when: float) -> None:
        left = when - time.monotonic()
        if left > 0:
            time.sleep(left)


class VirtualClock:
    """Never sleeps: a wait advances it. An engine that is driven in one process runs as fast as its scheduler can."""

    virtual = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)
