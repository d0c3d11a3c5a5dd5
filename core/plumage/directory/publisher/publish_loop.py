"""The loop that brings a publication to the server and survives every error, and the timer of its heartbeat."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from plumage.backoff import Backoff
from plumage.directory.client.connection import UNAVAILABLE, error_text
from plumage.directory.client.tasks import run_forever
from plumage.directory.publisher.epoch_writer import EpochWriter
from plumage.directory.publisher.publication import Publication

__all__ = ["HeartbeatTimer", "PublishLoop"]

log = logging.getLogger(__name__)


class PublishLoop:
    """degraded: the last write failed. name: of the server and the replica, in logs."""

    def __init__(
        self, publication: Publication, writer: EpochWriter, timer: HeartbeatTimer, name: str, rng: random.Random
    ) -> None:
        self.degraded = False
        self._publication = publication
        self._writer = writer
        self._timer = timer
        self._name = name
        self._backoff = Backoff(rng)

    async def run(self) -> None:
        """Write until cancelled, or until a newer writer of this replica registers."""
        await run_forever(
            self._turn, self._name, backoff=self._backoff, failed=self._failed, done=lambda: self._writer.superseded
        )

    async def _turn(self) -> None:
        await self._write()
        self._recovered()
        if not self._has_work:
            await self._timer.wait()

    @property
    def _has_work(self) -> bool:
        """There is something to write at once, or a newer writer ends the loop."""
        publication = self._publication
        return publication.epoch is None or bool(publication.outbox) or self._writer.superseded

    async def _write(self) -> None:
        """Write the most urgent of: a new epoch, a heartbeat, log entries."""
        epoch = self._publication.epoch
        if epoch is None:
            self._timer.restart()
            await self._writer.register()
        elif self._timer.due:
            self._timer.restart()
            await self._writer.heartbeat(epoch)
        elif self._publication.outbox:
            await self._writer.send(epoch, beat=False)

    def _failed(self, error: Exception) -> None:
        if not self.degraded:
            log.warning("%s failed: %s", self._name, error_text(error))
        self.degraded = True
        self._timer.expire()  # only a heartbeat shows that the server takes writes again
        if not isinstance(error, UNAVAILABLE):  # it may have stopped anywhere: write everything again
            self._publication.start_over()

    def _recovered(self) -> None:
        if self.degraded:
            log.info("%s succeeds again", self._name)
        self.degraded = False


class HeartbeatTimer:
    """When the next heartbeat is due, and the event that wakes its writer earlier. The first heartbeat is due at once.

    seconds: from one heartbeat to the next."""

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
        """Starts the time of the next heartbeat, which is due after `seconds`."""
        self._due_at = time.monotonic() + self._seconds

    def expire(self) -> None:
        """Makes a heartbeat due now."""
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
        """Sets one timer for each heartbeat, although there are dozens of waits in between."""
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
