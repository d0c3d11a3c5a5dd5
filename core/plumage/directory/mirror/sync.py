"""A router's side of the directory: tasks that keep its mirror in step with what the agents write.

`set_replicas` sets the replicas to follow. Membership comes from elsewhere: the directory adds cache and load. It never
decides which replica is alive. `view` returns the last report of a replica. No request waits for anything here. When
the server is away, everything stays as it was and `degraded` is set.

A replica's snapshot is read when its epoch is new, when its log has a gap, when count and digest differ from a check
mark or a heartbeat, and when the server's replication id changed (a failover may lose acknowledged writes). The mirror
uses the old chunks until the new snapshot is complete. A replica without heartbeat is *unknown-cache*: its chunks leave
the mirror. After a server came back, heartbeats have `BEAT_TTL` to return before that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import NoPermissionError, ResponseError

from plumage.backoff import Backoff
from plumage.directory.client.connection import close, connect, error_text, redacted
from plumage.directory.client.redis_pipeline import RedisPipeline
from plumage.directory.client.tasks import UnexpectedErrors, end, run_forever
from plumage.directory.mirror.log_reader import LOG_PIECE, Entry, LogReader, OutOfStep, in_pieces, weight
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.mirror.snapshot_reader import read_snapshot
from plumage.directory.schema import BEAT_TTL, Beat, Load, NewerSchemaError, SchemaError, State, are_apart

__all__ = ["DirectorySync", "ReplicaStatus"]

log = logging.getLogger(__name__)

BLOCK_MS = 100  # how long a read waits for entries; a new replica is read in the next turn
PACE = 0.010  # seconds between reads: one read takes the entries of several steps
ENTRIES_AT_ONCE = 200  # of each replica
LOADS_AT_ONCE = 4


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
        self.degraded = True
        self.counts: Counter[str] = Counter()
        self.mirror = mirror
        self._pool = pool
        self._engine = engine
        self._client = connect(url)
        self._pipeline = RedisPipeline(self._client)
        self._shown = redacted(url)
        self._unexpected_errors = UnexpectedErrors(f"directory {self._shown}: reading what a replica wrote")
        self._poll_seconds = poll_seconds
        self._rng = rng or random.Random()
        self._replicas: dict[str, ReplicaView] = {}
        self._replication: object = None  # the server's replication id, once seen
        self._grace_until = 0.0  # until then a missing heartbeat has no effect
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._poll_now = asyncio.Event()
        self._polled = False
        self._started = False
        self._tasks: set[asyncio.Task[None]] = set()

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

    async def ready(self, within: float = 10.0) -> bool:
        """Wait until every replica that has a heartbeat is in the mirror. Returns False after `within` seconds."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if self._polled and not any(known.behind for known in self._replicas.values()):
                return True
            await asyncio.sleep(0.01)
        return False

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
            self._spawn(self._repeat(partial(self._read_logs, None)), "logs")
        self._start_log_tasks()

    def _start_log_tasks(self) -> None:
        """In a Cluster one command can't name keys of several slots, so each log has its own task."""
        if not self._started or not isinstance(self._client, RedisCluster):
            return
        for known in self._replicas.values():
            if known.feed is None:
                known.feed = self._spawn(self._repeat(partial(self._read_logs, known)), f"log of {known.name}")

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"directory {what} of {self._pool}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        await end(self._tasks)
        await self._pipeline.close()
        await close(self._client)

    # Heartbeats

    async def _repeat(self, turn: Callable[[], Awaitable[None]]) -> None:
        await run_forever(turn, f"directory {self._shown}", backoff=Backoff(self._rng), failed=self._failed)

    async def _poll_turn(self) -> None:
        await self._run_upkeep()  # first: polling may fail
        await self._poll()
        await self._run_upkeep()  # again: the poll may have dropped chunks
        self._polled = True
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
        await self._check_replication()
        self._recovered()
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
                self._unexpected(error)

    def _read_beat(self, known: ReplicaView, found: Mapping[bytes, bytes], now: float) -> None:
        """One replica's heartbeat, or its absence."""
        if known.wanted == "dropped":
            return
        if not found:
            if now >= self._grace_until and known.beat is not None:
                log.info("directory %s: no heartbeat of %s; its cache is unknown", self._shown, known.name)
                known.lost()
            return
        try:
            beat = Beat.from_hash(found)
        except NewerSchemaError:
            self._newer(known)
        except SchemaError as error:
            self._malformed(known, error)
        else:
            self._take_beat(known, beat, now)

    def _take_beat(self, known: ReplicaView, beat: Beat, now: float) -> None:
        if are_apart(self._engine, beat.engine):
            self._take_other_model(known, beat, now)
        else:
            known.heard(beat, now)
            if known.behind and known.load is None and now >= known.not_before:
                known.load = self._spawn(self._load(known, beat.epoch), f"snapshot of {known.name}")

    def _take_other_model(self, known: ReplicaView, beat: Beat, now: float) -> None:
        self.counts["other_model"] += 1
        if known.unreadable != beat.epoch:
            text = "%s serves %s and this router renders %s: its cache is unknown until both have the same model folder"
            log.warning(text, known.name, beat.engine, self._engine)
        known.other_model(beat, now)

    def _newer(self, known: ReplicaView) -> None:
        self.counts["newer_schema"] += 1
        known.lost()

    def _malformed(self, known: ReplicaView, error: SchemaError) -> None:
        self.counts["malformed"] += 1
        log.warning("directory %s: what %s wrote can't be read: %s", self._shown, known.name, error)

    def _failed(self, error: BaseException) -> None:
        self.counts["failures"] += 1
        if not self.degraded or self.counts["failures"] == 1:
            log.warning("directory %s can't be read, going on with what is known: %s", self._shown, error_text(error))
        self.degraded = True

    def _recovered(self) -> None:
        """The server answers. It may have lost its data, and the agents need time to write it again."""
        if self.degraded:
            self._grace_until = time.monotonic() + BEAT_TTL
            log.info("directory %s answers", self._shown)
        self.degraded = False

    async def _check_replication(self) -> None:
        """A new replication id means that another server answers. It may lack writes: read all snapshots."""
        found = await self._replication_id()
        if found is not None and self._replication is not None and found != self._replication:
            self._grace_until = time.monotonic() + BEAT_TTL
            for known in self._replicas.values():
                known.want("failover")
        self._replication = found or self._replication

    async def _replication_id(self) -> object:
        client = self._client
        try:
            if isinstance(client, RedisCluster):
                nodes: Any = await client.info("replication", target_nodes=RedisCluster.PRIMARIES)
                return tuple(sorted(str(node.get("master_replid")) for node in nodes.values()))
            return (await client.info("replication")).get("master_replid")
        except NoPermissionError:  # an ACL user without INFO: digests and gaps show losses later
            return None

    # Snapshots

    async def _load(self, known: ReplicaView, epoch: str) -> None:
        try:
            async with self._loads:
                self.counts[f"snapshot_{known.wanted}"] += 1
                await read_snapshot(self._client, known.keys, epoch, known.reader)
            known.loaded()
        except OutOfStep as error:
            self._postpone(known, error.reason)
        except NewerSchemaError:
            self._newer(known)
            known.unreadable = epoch
        except SchemaError as error:
            self._malformed(known, error)
            self._postpone(known, "malformed")
        except Exception as error:
            self._unexpected_errors.log_once(error)
            self._failed(error)
            self._postpone(known, "failed")
        finally:
            known.load = None

    def _postpone(self, known: ReplicaView, reason: str) -> None:
        known.want(reason)
        delay = known.backoff.next()
        known.not_before = time.monotonic() + delay
        asyncio.get_running_loop().call_later(delay, self._poll_now.set)

    # Logs

    async def _read_logs(self, only: ReplicaView | None) -> None:
        """Read the logs of all replicas with one command, or of `only` one."""
        replicas = self._replicas.values() if only is None else (only,)
        logs = {known.log.encode(): known for known in replicas if known.live}
        taken = 0  # since the last sleep; to sleep after each replica would take seconds with a thousand of them
        for key, entries in await self._read(logs):
            for piece in in_pieces(entries):
                self._take(logs[key], key, piece)
                taken += sum(map(weight, piece))
                if taken >= LOG_PIECE:
                    taken = 0
                    await asyncio.sleep(0)
        for known in logs.values():
            known.reads += 1
        await asyncio.sleep(PACE)

    async def _read(self, logs: Mapping[bytes, ReplicaView]) -> list[tuple[bytes, list[Entry]]]:
        if not logs:
            await asyncio.sleep(BLOCK_MS / 1000)
            return []
        last: dict[Any, Any] = {key: f"{known.reader.seq}-0" for key, known in logs.items()}
        if isinstance(self._client, RedisCluster):
            got: Any = await self._client.xread(last, count=ENTRIES_AT_ONCE, block=BLOCK_MS)
            return got or []
        command = ("XREAD", "COUNT", ENTRIES_AT_ONCE, "BLOCK", BLOCK_MS, "STREAMS", *last, *last.values())
        (reply,) = await self._pipeline.execute([command])
        if isinstance(reply, ResponseError):
            raise reply
        return [(key, [(name, _fields(flat)) for name, flat in entries]) for key, entries in reply or ()]

    def _take(self, known: ReplicaView, key: bytes, entries: list[Entry]) -> None:
        """Apply the entries, unless the replica no longer follows this log: a snapshot may have begun since."""
        if not known.live or known.log.encode() != key:
            return
        try:
            self.counts["changes"] += known.reader.take(entries)
            self.counts["entries"] += len(entries)
        except OutOfStep as error:
            known.want(error.reason)
            self._poll_now.set()
        except NewerSchemaError:
            known.unreadable = known.reader.epoch
            self._newer(known)
        except SchemaError as error:
            self._malformed(known, error)
            self._postpone(known, "malformed")
        except Exception as error:  # a bug here would come again, before the entries of all other replicas
            self._unexpected(error)
            self._postpone(known, "failed")

    def _unexpected(self, error: Exception) -> None:
        self._unexpected_errors.log_once(error)
        self.counts["failures"] += 1


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Name, value, name, value, …"""
    return dict(zip(flat[::2], flat[1::2], strict=True))
