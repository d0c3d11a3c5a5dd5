"""Loads the snapshots of replicas into the mirror, a few at once.

`read_snapshot` reads one snapshot, and the log after it. Other tasks run about every millisecond meanwhile, and the
server is read in pieces as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from redis.exceptions import ResponseError

from plumage.directory.client.connection import Client
from plumage.directory.mirror.log_reader import LogReader, OutOfStep, in_pieces
from plumage.directory.mirror.read_failures import ReadFailures
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.mirror.server_state import ServerState
from plumage.directory.schema import BUCKETS, Keys, NewerSchemaError, SchemaError, sequence

__all__ = ["SnapshotLoader", "read_snapshot"]

LOADS_AT_ONCE = 4
BUCKETS_AT_ONCE = 8
ENTRIES_AT_ONCE = 200
ROUNDS = 10_000  # reads of a log until the reader gives up


class SnapshotLoader:
    """counts: gets snapshots by reason (`snapshot_gap`, …)."""

    def __init__(self, client: Client, server: ServerState, failures: ReadFailures, counts: Counter[str]) -> None:
        self._client = client
        self._server = server
        self._failures = failures
        self._counts = counts
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, known: ReplicaView, epoch: str) -> None:
        """Load the snapshot of an epoch. After a failure it is wanted again."""
        failures = self._failures
        try:
            async with self._slots:
                self._counts[f"snapshot_{known.wanted}"] += 1
                await read_snapshot(self._client, known.keys, epoch, known.reader)
            known.loaded()
        except OutOfStep as error:
            failures.postpone(known, error.reason)
        except NewerSchemaError:
            failures.newer(known)
            known.unreadable = epoch
        except SchemaError as error:
            failures.malformed(known, error)
            failures.postpone(known, "malformed")
        except Exception as error:
            failures.log_once(error)
            self._server.failed(error)
            failures.postpone(known, "failed")
        finally:
            known.load = None


async def read_snapshot(client: Client, keys: Keys, epoch: str, reader: LogReader) -> None:
    """Fill `reader` from the snapshot of `epoch`. Its old chunks stay visible until the end.

    Afterwards it is in step with the log. OutOfStep, SchemaError: it is not, and the caller tries again later."""
    reader.begin()
    try:
        await _read_buckets(client, keys.snap(epoch), reader)
        await _catch_up(client, keys.log(epoch), reader)
        for _ in reader.commit(epoch):
            await asyncio.sleep(0)
    finally:
        reader.abandon()


async def _read_buckets(client: Client, key: str, reader: LogReader) -> None:
    for first in range(0, BUCKETS, BUCKETS_AT_ONCE):
        numbers = range(first, first + BUCKETS_AT_ONCE)
        found: Any = await client.hmget(key, [str(number) for number in numbers])
        if None in found:
            raise OutOfStep("gone")  # its writer began another epoch, or it expired
        for number, data in zip(numbers, found, strict=True):
            for _ in reader.take_bucket(number, data):
                await asyncio.sleep(0)
    reader.buckets_done()


async def _catch_up(client: Client, key: str, reader: LogReader) -> None:
    """Apply the log up to its end. It must reach back to the bucket that was read first."""
    for _ in range(ROUNDS):
        last = await _last_entry(client, key)
        if last <= reader.seq:
            return
        entries: Any = await client.xrange(key, min=f"{reader.seq + 1}-0", count=ENTRIES_AT_ONCE)
        if not entries:
            raise OutOfStep("gap")  # trimmed while the buckets were read
        for piece in in_pieces(entries):
            reader.catch_up(piece)
            await asyncio.sleep(0)
    raise OutOfStep("gap")


async def _last_entry(client: Client, key: str) -> int:
    try:
        stream: Any = await client.xinfo_stream(key)
    except ResponseError as error:  # no such key: the writer stopped, or has not begun
        raise OutOfStep("gap") from error
    return sequence(stream["last-generated-id"])
