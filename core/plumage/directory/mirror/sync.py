"""A router's side of the directory: tasks that keep its mirror in step with what the agents write.

`set_replicas` sets the replicas to follow. Membership comes from elsewhere: the directory adds cache and load. It never
decides which replica is alive. `view` returns the last report of a replica. No request waits for anything here. When
the server is away, everything stays as it was and `degraded` is set.

A replica's snapshot is read when

- its epoch is new,
- its log has a gap,
- count and digest differ from a check mark or a heartbeat,
- the server's replication id changed: a failover may lose acknowledged writes.

The mirror uses the old chunks until the new snapshot is complete. A replica without heartbeat is *unknown-cache*: its
chunks leave the mirror. After a server came back, heartbeats have `BEAT_TTL` to return before that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from redis.asyncio import RedisCluster

from plumage.backoff import Backoff
from plumage.directory.client.connection import close, connect, redacted
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.mirror.log_follower import LogFollower
from plumage.directory.mirror.log_reader import LogReader
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.read_failures import ReadFailures
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.mirror.server_state import ServerState
from plumage.directory.mirror.snapshot_loader import SnapshotLoader
from plumage.directory.schema import Beat, Load, NewerSchemaError, SchemaError, State, are_apart

__all__ = ["DirectorySync", "ReplicaStatus"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What the directory knows of a replica.

    cache_known: its chunks are in the mirror. If not, the other fields are from its last heartbeat, or empty.
    seen: time.monotonic() when the last heartbeat was read."""

    cache_known: bool = False
    state: State | None = None
    load: Load = field(default_factory=Load)
    epoch: str = ""
    engine: str = ""
    chunks: int = 0
    seen: float = float("-inf")


class DirectorySync:
    """Follows one pool.

    engine: see `schema.engine_name`; replicas with another one are unknown-cache. poll_seconds: between two reads of
    heartbeats. degraded: the last read failed. counts: entries, changes, snapshots by reason (`snapshot_gap`, …),
    `newer_schema`, `malformed`, `failures`, `other_model` (heartbeats of replicas with another engine name)."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        mirror: Mirror,
        engine: str = "",
        poll_seconds: float = 1.0,
        rng: random.Random | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.mirror = mirror
        self._pool = pool
        self._engine = engine
        self._client = connect(url)
        self._poll_seconds = poll_seconds
        self._rng = rng or random.Random()
        self._replicas: dict[str, ReplicaView] = {}
        self._poll_now = asyncio.Event()
        self._started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = ServerState(self._client, redacted(url), self.counts)
        self._failures = ReadFailures(self._server.shown, self.counts, self._poll_now.set)
        self._logs = LogFollower(self._client, self._failures, self.counts)
        self._snapshots = SnapshotLoader(self._client, self._server, self._failures, self.counts)

    @property
    def degraded(self) -> bool:
        return self._server.degraded

    @property
    def caught_up(self) -> bool:
        """Whether the mirror has the cache of every replica that has a heartbeat."""
        return all(known.asked and not known.behind for known in self._replicas.values())

    # Calls of the router

    def set_replicas(self, slots: Mapping[str, int]) -> None:
        """Follow exactly these replicas: id → slot of the mirror."""
        for name in [name for name, known in self._replicas.items() if slots.get(name) != known.reader.slot]:
            gone = self._replicas.pop(name)
            gone.drop()
            self.mirror.forget(gone.reader.slot)
        for name, slot in slots.items():
            if name not in self._replicas:
                reader = LogReader(self.mirror, slot)
                self._replicas[name] = ReplicaView(self._pool, name, reader, Backoff(self._rng))
        self._start_log_tasks()
        self._poll_now.set()

    def view(self, replica: str) -> ReplicaStatus:
        known = self._replicas.get(replica)
        if known is None:
            return ReplicaStatus()
        beat, held = known.beat, known.reader
        cache_known = held.epoch is not None
        if beat is None:
            return ReplicaStatus(cache_known, seen=known.seen)
        return ReplicaStatus(cache_known, beat.state, beat.load, beat.epoch, beat.engine, beat.count, known.seen)

    # The tasks

    async def __aenter__(self) -> DirectorySync:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        self._started = True
        self._spawn(self._repeat(self._poll_turn), "heartbeats")
        if not isinstance(self._client, RedisCluster):
            self._spawn(self._repeat(lambda: self._logs.read(self._replicas.values())), "logs")
        self._start_log_tasks()

    def _start_log_tasks(self) -> None:
        """Starts a task for each log: in a Cluster one command can't name keys of several slots."""
        if not self._started or not isinstance(self._client, RedisCluster):
            return
        for known in self._replicas.values():
            if known.feed is None:
                known.feed = self._spawn(self._repeat(partial(self._logs.read, (known,))), f"log of {known.name}")

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"directory {what} of {self._pool}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        await end(self._tasks)
        await self._logs.close()
        await close(self._client)

    # Heartbeats

    async def _repeat(self, turn: Callable[[], Awaitable[None]]) -> None:
        await run_forever(
            turn, f"directory {self._server.shown}", backoff=Backoff(self._rng), failed=self._server.failed
        )

    async def _poll_turn(self) -> None:
        await self._run_upkeep()  # first: polling may fail
        await self._poll()
        await self._run_upkeep()  # again: the poll may have dropped chunks
        await self._pause()

    async def _run_upkeep(self) -> None:
        for _ in self.mirror.upkeep(time.monotonic()):
            await asyncio.sleep(0)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_seconds * self._rng.uniform(0.8, 1.2)):
                await self._poll_now.wait()
        self._poll_now.clear()

    async def _poll(self) -> None:
        if await self._server.was_replaced():
            for known in self._replicas.values():
                known.want("failover")
        self._server.answered()
        replicas = list(self._replicas.values())
        pipe = self._client.pipeline(transaction=False)
        for known in replicas:
            pipe.hgetall(known.keys.beat)
        found = await pipe.execute() if replicas else []
        now = time.monotonic()
        for known, beat in zip(replicas, found, strict=True):
            try:
                self._read_beat(known, beat, now)
            except Exception as error:  # a bug here must not hide the heartbeats behind this one
                self._failures.unexpected(error)

    def _read_beat(self, known: ReplicaView, found: Mapping[bytes, bytes], now: float) -> None:
        """Reads the heartbeat of one replica, or its absence."""
        known.asked = True
        if known.wanted == "dropped":
            return
        if not found:
            if now >= self._server.grace_until and known.beat is not None:
                log.info("directory %s: no heartbeat of %s; its cache is unknown", self._server.shown, known.name)
                known.lost()
            return
        try:
            beat = Beat.from_hash(found)
        except NewerSchemaError:
            self._failures.newer(known)
        except SchemaError as error:
            self._failures.malformed(known, error)
        else:
            self._take_beat(known, beat, now)

    def _take_beat(self, known: ReplicaView, beat: Beat, now: float) -> None:
        if are_apart(self._engine, beat.engine):
            self._take_other_model(known, beat, now)
        else:
            known.heard(beat, now)
            if known.behind and known.load is None and now >= known.not_before:
                known.load = self._spawn(self._snapshots.load(known, beat.epoch), f"snapshot of {known.name}")

    def _take_other_model(self, known: ReplicaView, beat: Beat, now: float) -> None:
        self.counts["other_model"] += 1
        if known.unreadable != beat.epoch:
            text = "%s serves %s and this router renders %s: its cache is unknown until both have the same model folder"
            log.warning(text, known.name, beat.engine, self._engine)
        known.other_model(beat, now)
