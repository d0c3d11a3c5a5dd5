"""What a router's sync remembers of one replica besides its log: its last heartbeat, and why its snapshot is needed."""

from __future__ import annotations

import asyncio

from plumage.directory.backoff import Backoff
from plumage.directory.follower import Follower
from plumage.directory.schema import Beat, Keys

__all__ = ["Followed"]

PATIENCE = 0.5  # seconds in which entries that a heartbeat named come, if they are there


class Followed:
    """`wanted`: why a snapshot has to be read, or None. `not_before`: no snapshot is read earlier. `unreadable`: an
    epoch that was written in a newer schema, or for another model."""

    def __init__(self, pool: str, name: str, follower: Follower, backoff: Backoff) -> None:
        self.name = name
        self.keys = Keys(pool, name)
        self.follower = follower
        self.backoff = backoff
        self.beat: Beat | None = None
        self.seen = float("-inf")
        self.wanted: str | None = "new"
        self.not_before = 0.0
        self.unreadable: str | None = None
        self.load: asyncio.Task[None] | None = None
        self.feed: asyncio.Task[None] | None = None
        self._short_at = 0  # the last log entry read when a heartbeat named later ones …
        self._short_since = float("inf")  # … and since when it is

    @property
    def live(self) -> bool:
        """Its log may be applied as it comes."""
        return self.follower.epoch is not None and self.wanted is None

    @property
    def behind(self) -> bool:
        """It has a heartbeat and its snapshot is not in."""
        return self.beat is not None and not self.live and self.beat.epoch != self.unreadable

    @property
    def log(self) -> str:
        return self.keys.log(self.follower.epoch or "")

    def want(self, why: str) -> None:
        """The first reason stays: later ones follow from it."""
        self.wanted = self.wanted or why

    def loaded(self) -> None:
        self.wanted = None
        self.backoff.reset()

    def silent(self) -> None:
        """No heartbeat, or none that can be read: unknown-cache."""
        self.beat = None
        self.cancel_load()
        self.follower.forget()
        self.wanted = "new"

    def apart(self, beat: Beat, now: float) -> None:
        """Its chunks mean something else than ours: its word counts, its cache is unknown."""
        if self.unreadable != beat.epoch:
            self.silent()
            self.unreadable = beat.epoch
        self.beat, self.seen = beat, now

    def heard(self, beat: Beat, now: float) -> None:
        self.beat, self.seen = beat, now
        if self.follower.epoch is not None and beat.epoch != self.follower.epoch:
            self.want("epoch")
        elif not self.follower.agrees(beat):
            self.want("digest")
        elif self._falls_short(beat, now):
            self.want("gap")

    def _falls_short(self, beat: Beat, now: float) -> bool:
        """Entries that it has written do not come: they were trimmed away before they were read. A later entry would
        show the hole, but an engine may be quiet for hours."""
        read = self.follower.seq
        if beat.epoch != self.follower.epoch or beat.seq <= read:
            self._short_since = float("inf")
        elif self._short_since > now or self._short_at != read:
            self._short_at, self._short_since = read, now
        return now - self._short_since >= PATIENCE

    def cancel_load(self) -> None:
        if self.load is not None:
            self.load.cancel()
            self.follower.abandon()

    def drop(self) -> None:
        """It left the pool."""
        self.cancel_load()
        if self.feed is not None:
            self.feed.cancel()
        self.wanted = "dropped"
