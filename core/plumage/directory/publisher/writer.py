"""An agent's side of the directory: it publishes what its engine holds. Each replica has one writer.

`publish`, `report` and `clear` change memory and never wait; a task writes the changes to the server. A slow or
unavailable server costs freshness only. Changes wait in a bounded outbox. If that is full, the writer starts a new
epoch with a whole snapshot of the chunks that it keeps in memory.

    async with DirectoryWriter(url, pool="chat", replica="chat-0") as writer:
        writer.publish([Change(chunk, Tier.GPU, tokens), Change(other, Tier.GONE)])  # once per engine step
        writer.report(state=State.READY, load=Load(running=3, waiting=0, kv_usage=0.4))

| class            | job                                                                    |
|------------------|------------------------------------------------------------------------|
| `HeldChunks`     | the replica's chunks: bounded, with count and digest                   |
| `Outbox`         | log entries that the server has not acknowledged                       |
| `Publication`    | joins both with the epoch, the state and the load                      |
| `BucketSchedule` | which buckets of the snapshot to rewrite                               |
| `EpochWriter`    | writes registration, snapshot, entries and heartbeat to the server     |
| `HeartbeatTimer` | when the next heartbeat is due                                         |
| `PublishLoop`    | the task: chooses what to write, backs off, and survives every error   |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from types import TracebackType

from plumage.directory.client.connection import redacted
from plumage.directory.client.tasks import end
from plumage.directory.publisher.epoch_writer import EpochWriter
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.publisher.publication import Publication
from plumage.directory.publisher.publish_loop import HeartbeatTimer, PublishLoop
from plumage.directory.schema import BEAT_TTL, Change, Keys, Load, State

__all__ = ["DirectoryWriter"]

RESIZE_PACE = 0.02  # seconds between the steps of a resize: some hundred thousand chunks a second


class DirectoryWriter:
    """Writes one replica's part of the directory.

    url: see `client.connection`. engine: what makes its chunks, see `schema.engine_name`.
    heartbeat_seconds: at most a third of `BEAT_TTL`. capacity: most chunks published.
    held: the chunks that it publishes, to read."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        replica: str,
        engine: str = "",
        heartbeat_seconds: float = 2.0,
        capacity: int = 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self.keys = Keys(pool, replica)
        self.held = HeldChunks(capacity)
        self._timer = HeartbeatTimer(min(heartbeat_seconds, BEAT_TTL / 3))
        self._publication = Publication(self.held, engine, self._timer.wake)
        self._epochs = EpochWriter(url, self.keys, self._publication)
        name = f"directory {redacted(url)}: writing {replica}"
        self._loop = PublishLoop(self._publication, self._epochs, self._timer, name, rng or random.Random())
        self._task: asyncio.Task[None] | None = None

    # Changes

    def publish(self, changes: Iterable[Change]) -> None:
        """Publish the changes of an engine step, in one log entry. Changes that change nothing cost nothing."""
        records = self.held.record(changes)
        if records:
            self._publication.append(records)

    async def rank(self, uses: Mapping[int, int]) -> None:
        """Set how often chunks were used, hottest first. At capacity hotter chunks replace colder ones.

        There may be hundreds of thousands: other tasks run in between. See `HeldChunks.rank`."""
        for records in self.held.rank(uses):
            if records:
                self._publication.append(records)
            await asyncio.sleep(0)

    async def resize(self, capacity: int) -> None:
        """Set the most chunks that are published. The coldest are deleted at a pace that a server can follow."""
        for records in self.held.resize(capacity):
            if records:
                self._publication.append(records)
            await asyncio.sleep(RESIZE_PACE)

    def report(self, *, state: State | None = None, load: Load | None = None) -> None:
        """Set state and load for the next heartbeat. A new state is sent at once."""
        publication = self._publication
        if load is not None:
            publication.load = load
        if state is not None and state is not publication.state:
            publication.state = state
            self._timer.expire()

    def clear(self) -> None:
        """Forgets all chunks: the engine restarted, or reset its prefix cache."""
        self._publication.clear()

    # State

    @property
    def epoch(self) -> str | None:
        """The current epoch; None until it is registered."""
        return self._publication.epoch

    @property
    def behind(self) -> int:
        """Log entries that the server has not acknowledged."""
        return len(self._publication.outbox)

    @property
    def degraded(self) -> bool:
        """The last write failed."""
        return self._loop.degraded

    @property
    def superseded(self) -> bool:
        """A newer writer of this replica has registered; this one writes nothing any more."""
        return self._epochs.superseded

    @property
    def registrations(self) -> int:
        """Epochs begun so far."""
        return self._epochs.registrations

    # The task

    async def __aenter__(self) -> DirectoryWriter:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name=f"directory writer of {self.keys.replica}")

    async def run(self) -> None:
        """Write changes to the server until cancelled, or until a newer writer registers."""
        await self._loop.run()

    async def close(self, *, forget: bool = True) -> None:
        """Stop. forget: delete the replica from the directory, so that routers need not wait for its heartbeat to
        expire."""
        if self._task is not None:
            await end([self._task])
            self._task = None
        self._timer.cancel()
        await self._epochs.close(delete=forget and not self.superseded and not self.degraded)
