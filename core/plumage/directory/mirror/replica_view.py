"""What a router keeps of one replica beside its log: its last heartbeat, and why its snapshot must be read."""

from __future__ import annotations

import asyncio

from plumage.backoff import Backoff
from plumage.directory.mirror.log_reader import LogReader
from plumage.directory.schema import Beat, Keys

__all__ = ["ReplicaView"]

READS = 2  # after so many reads of a log, entries that a heartbeat named are lost; one read was under way already


class ReplicaView:
    """wanted: why a snapshot must be read, or None. not_before: no snapshot is read before this time.

    unreadable: an epoch that was written in a newer schema, or for another model. reads: reads of its log that ended,
    with entries or without. load, feed: the tasks that read its snapshot and its log. asked: the server was asked for
    its heartbeat."""

    def __init__(self, pool: str, name: str, reader: LogReader, backoff: Backoff) -> None:
        self.name = name
        self.keys = Keys(pool, name)
        self.reader = reader
        self.backoff = backoff
        self.beat: Beat | None = None
        self.seen = float("-inf")
        self.wanted: str | None = "new"
        self.not_before = 0.0
        self.unreadable: str | None = None
        self.load: asyncio.Task[None] | None = None
        self.feed: asyncio.Task[None] | None = None
        self.reads = 0
        self.asked = False
        self._short: tuple[int, int] | None = None  # last entry and `reads`, when a heartbeat first named later entries

    @property
    def live(self) -> bool:
        """Its log may be applied as it comes."""
        return self.reader.epoch is not None and self.wanted is None

    @property
    def behind(self) -> bool:
        """It has a heartbeat, and its snapshot is not loaded."""
        return self.beat is not None and not self.live and self.beat.epoch != self.unreadable

    @property
    def log(self) -> str:
        return self.keys.log(self.reader.epoch or "")

    def want(self, reason: str) -> None:
        """Asks for a snapshot. The first reason stays: later ones follow from it."""
        self.wanted = self.wanted or reason

    def loaded(self) -> None:
        self.wanted = self._short = None
        self.backoff.reset()

    def lost(self) -> None:
        """There is no readable heartbeat: its cache is unknown."""
        self.beat = None
        self.cancel_load()
        self.reader.forget()
        self.wanted = "new"

    def other_model(self, beat: Beat, now: float) -> None:
        """Takes a heartbeat of another model: state and load are used, its cache is unknown."""
        if self.unreadable != beat.epoch:
            self.lost()
            self.unreadable = beat.epoch
        self.beat, self.seen = beat, now

    def heard(self, beat: Beat, now: float) -> None:
        self.beat, self.seen = beat, now
        if self.reader.epoch is not None and beat.epoch != self.reader.epoch:
            self.want("epoch")
        elif not self.reader.agrees(beat):
            self.want("digest")
        elif self._lost_entries(beat):
            self.want("gap")

    def _lost_entries(self, beat: Beat) -> bool:
        """Whether entries before the heartbeat were trimmed before they were read.

        A later entry would show the gap, but an engine may be quiet for hours. This counts reads, not seconds: a busy
        process may have entries that it did not read yet, and another snapshot would keep it busy."""
        read = self.reader.seq
        if beat.epoch != self.reader.epoch or beat.seq <= read:
            self._short = None
            return False
        if self._short is None or self._short[0] != read:
            self._short = read, self.reads
        return self.reads - self._short[1] >= READS

    def cancel_load(self) -> None:
        if self.load is not None:
            self.load.cancel()
            self.reader.abandon()

    def drop(self) -> None:
        """Forgets the replica, which left the pool."""
        self.cancel_load()
        if self.feed is not None:
            self.feed.cancel()
        self.wanted = "dropped"
