"""The timer of a replica's heartbeat, and the event that wakes its writer earlier."""

from __future__ import annotations

import asyncio
import time

__all__ = ["HeartbeatTimer"]


class HeartbeatTimer:
    """The first heartbeat is due at once. seconds: from one heartbeat to the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due_at = 0.0  # by time.monotonic()
        self._wake = asyncio.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0  # the value of `_due_at` that the handle was set for

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_at

    def restart(self) -> None:
        """A heartbeat is sent now: the next one is due after `seconds`."""
        self._due_at = time.monotonic() + self._seconds

    def expire(self) -> None:
        """A heartbeat is due now."""
        self._due_at = 0.0
        self.wake()

    def wake(self) -> None:
        """End the current `wait`."""
        self._wake.set()

    async def wait(self) -> None:
        """Wait until a heartbeat is due or `wake` is called. It may return a little early."""
        self._wake.clear()
        self._arm()
        await self._wake.wait()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        """One timer for each heartbeat, although there are dozens of waits in between."""
        if self._handle is not None and self._handle_at != self._due_at:
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._handle_at = self._due_at
            delay = max(0.0, self._due_at - time.monotonic())
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self.wake()
