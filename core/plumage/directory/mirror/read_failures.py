"""What to do about a replica whose heartbeat, log or snapshot can't be used."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from plumage.directory.client.tasks import UnexpectedErrors
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.schema import SchemaError

__all__ = ["ReadFailures"]

log = logging.getLogger(__name__)


class ReadFailures:
    """Counts and logs them, and says when a snapshot is read again.

    counts: gets `newer_schema`, `malformed` and `failures`. poll: starts a turn of the heartbeats now. shown: the
    server's URL, for the log."""

    def __init__(self, shown: str, counts: Counter[str], poll: Callable[[], None]) -> None:
        self.poll = poll
        self._shown = shown
        self._counts = counts
        self._unexpected = UnexpectedErrors(f"directory {shown}: reading what a replica wrote")

    def newer(self, known: ReplicaView) -> None:
        """Counts an entry of a newer schema: the replica's cache is unknown."""
        self._counts["newer_schema"] += 1
        known.lost()

    def malformed(self, known: ReplicaView, error: SchemaError) -> None:
        self._counts["malformed"] += 1
        log.warning("directory %s: what %s wrote can't be read: %s", self._shown, known.name, error)

    def unexpected(self, error: Exception) -> None:
        """Counts a mistake of ours. Each kind is logged once."""
        self.log_once(error)
        self._counts["failures"] += 1

    def log_once(self, error: Exception) -> None:
        """`unexpected`, for an error that is counted elsewhere or foreseen."""
        self._unexpected.log_once(error)

    def postpone(self, known: ReplicaView, reason: str) -> None:
        """Postpones the next read of its snapshot by a back-off."""
        known.want(reason)
        delay = known.backoff.next()
        known.not_before = time.monotonic() + delay
        asyncio.get_running_loop().call_later(delay, self.poll)
