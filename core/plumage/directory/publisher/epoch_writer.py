"""Writes the epochs of one replica to the server: registration, snapshot, log entries and heartbeats.

Every write may be repeated. Log entries carry their own ids, so the server refuses a repetition; all other writes state
the current value. Each heartbeat first reads what was written before. If the server came back empty, or a failover lost
the last entries, everything is written again in a new epoch. If a newer writer of the same replica has registered,
`superseded` is set.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

from plumage.directory.client.connection import UNAVAILABLE, close, connect
from plumage.directory.client.redis_pipeline import Command, RedisPipeline
from plumage.directory.publisher.bucket_schedule import BucketSchedule
from plumage.directory.publisher.outbox import OutboxEntry, append_commands, log_bytes
from plumage.directory.publisher.publication import Publication
from plumage.directory.schema import BEAT_TTL, BUCKETS, DATA_TTL, EPOCH_TTL, Beat, Keys, sequence

__all__ = ["EpochWriter"]

log = logging.getLogger(__name__)

BUCKETS_AT_ONCE = 8
REPEATED = "equal or smaller"  # part of the server's error for a log entry that it already has


class EpochWriter:
    """Writes `publication` under `keys` to the server at `url`.

    registrations: epochs begun so far. superseded: a newer writer of this replica has registered.
    Its methods raise UNAVAILABLE if the server is away or refuses a command."""

    def __init__(self, url: str, keys: Keys, publication: Publication) -> None:
        self.registrations = 0
        self.superseded = False
        self._keys = keys
        self._publication = publication
        self._client = connect(url)
        self._pipeline = RedisPipeline(self._client)
        self._schedule = BucketSchedule()
        self._registered = 0  # the counter's value at our registration
        self._leftover_epochs: set[str] = set()  # of ours; the server may still have something of them

    async def register(self) -> None:
        """Begin a new epoch with a whole snapshot.

        The heartbeat comes last: routers see the epoch once everything else is there."""
        publication, client, keys = self._publication, self._client, self._keys
        generation = publication.generation
        registered = int(await client.incr(keys.epoch))
        await client.expire(keys.epoch, EPOCH_TTL)
        found: Any = await client.hget(keys.beat, "epoch")
        previous = {found.decode(errors="replace")} if found else set()  # routers read it
        await self._delete_epochs(self._leftover_epochs - previous)
        epoch = f"{registered}.{secrets.token_hex(4)}"
        self._leftover_epochs = {epoch} | previous
        publication.outbox.clear()
        publication.append_check_mark()  # the first entry, so that the log exists
        await self._write_snapshot(epoch)
        if generation != publication.generation:
            return
        publication.epoch, self._registered = epoch, registered
        self.registrations += 1
        await self.send(epoch, beat=True)
        await self._delete_epochs(previous)
        self._leftover_epochs = {epoch}

    async def heartbeat(self, epoch: str) -> None:
        """Read what was written before, then write the heartbeat."""
        keys, publication = self._keys, self._publication
        pipe = self._client.pipeline(transaction=False)
        pipe.get(keys.epoch)
        pipe.xinfo_stream(keys.log(epoch))
        counter, stream = await pipe.execute(raise_on_error=False)
        if publication.epoch != epoch:
            return  # the engine was emptied meanwhile: everything must be written again
        if isinstance(counter, Exception):  # the server may be loading its data: the stream decides
            counter = self._registered
        if counter is not None and int(counter) > self._registered:
            self.superseded = True
            log.error("another writer registered replica %s; this one stops", keys.replica)
        elif (
            counter is None
            or int(counter) < self._registered
            or isinstance(stream, Exception)
            or self._lost_entries(stream)
        ):
            log.warning("the directory lost entries of %s; writing all of them again", keys.replica)
            publication.start_over()
        else:
            if publication.outbox.last_checked != publication.outbox.last:
                publication.append_check_mark()
            await self.send(epoch, beat=True)

    async def send(self, epoch: str, *, beat: bool) -> None:
        """Write the next entries, the buckets that are due after them, and the heartbeat, in one round trip."""
        publication, outbox = self._publication, self._publication.outbox
        generation = publication.generation
        batch = outbox.batch()
        due = append_commands(self._keys.log(epoch), batch) + self._due_buckets(epoch, batch)
        if beat:
            due += beat_commands(self._keys, publication.beat(epoch))
        if due:
            self._check(await self._pipeline.execute(due))
        if batch and generation == publication.generation:
            outbox.acknowledge(batch)
        while generation == publication.generation and (due := self._due_buckets(epoch, ())):  # after a large batch
            self._check(await self._pipeline.execute(due))

    async def close(self, *, delete: bool) -> None:
        """Close the connections. delete: first delete the current epoch, so that routers need not wait until its
        heartbeat expires."""
        epoch, keys = self._publication.epoch, self._keys
        with contextlib.suppress(*UNAVAILABLE):
            if delete and epoch is not None:
                await self._client.unlink(keys.beat, keys.snap(epoch), keys.log(epoch))
        await self._pipeline.close()
        await close(self._client)

    async def _delete_epochs(self, epochs: Iterable[str]) -> None:
        """Deletes old epochs. A server that lost all keys may have stored some again without a time to live."""
        for epoch in epochs:
            await self._client.unlink(self._keys.snap(epoch), self._keys.log(epoch))

    async def _write_snapshot(self, epoch: str) -> None:
        self._schedule.reset()
        for first in range(0, BUCKETS, BUCKETS_AT_ONCE):
            commands = self._bucket_commands(epoch, range(first, first + BUCKETS_AT_ONCE))
            commands.append(("EXPIRE", self._keys.snap(epoch), DATA_TTL))
            self._check(await self._pipeline.execute(commands))

    def _bucket_commands(self, epoch: str, buckets: Iterable[int]) -> list[Command]:
        held, seq = self._publication.held, self._publication.outbox.last
        commands: list[Command] = []
        for number in buckets:
            commands.append(("HSET", self._keys.snap(epoch), number, held.bucket(number, seq)))
            self._schedule.seqs[number] = seq
        return commands

    def _due_buckets(self, epoch: str, batch: Sequence[OutboxEntry]) -> list[Command]:
        """The buckets that are due after `batch`, and the log's trim that they allow."""
        due = self._bucket_commands(epoch, self._schedule.due(log_bytes(batch), self._publication.held.count))
        if due:
            due.append(("XTRIM", self._keys.log(epoch), "MINID", f"{self._schedule.trim_before}-0"))
        return due

    def _lost_entries(self, stream: dict[str, Any]) -> bool:
        """A failover may lose the last entries although the server acknowledged them.

        Where newer entries were appended after it, the number of the first one or their count shows what is missing."""
        last, first = sequence(stream["last-generated-id"]), stream["first-entry"]
        if last < self._publication.outbox.acknowledged:
            return True
        if first is None:
            return False
        oldest = sequence(first[0])
        return oldest > self._schedule.trim_before or stream["length"] < last - oldest + 1

    def _check(self, results: Sequence[Any]) -> None:
        """Raises for a refused write: only a new epoch closes its gap. A refused repetition is no error."""
        for result in results:
            if isinstance(result, ResponseError) and REPEATED in str(result):
                continue
            if isinstance(result, Exception):
                self._publication.start_over()
                raise result


def beat_commands(keys: Keys, beat: Beat) -> list[Command]:
    """The commands that write a heartbeat and extend the time to live of the epoch."""
    return [
        ("HSET", keys.beat, *chain.from_iterable(beat.to_hash().items())),
        ("PEXPIRE", keys.beat, int(BEAT_TTL * 1000)),
        ("EXPIRE", keys.epoch, EPOCH_TTL),
        ("EXPIRE", keys.snap(beat.epoch), DATA_TTL),
        ("EXPIRE", keys.log(beat.epoch), DATA_TTL),
    ]
