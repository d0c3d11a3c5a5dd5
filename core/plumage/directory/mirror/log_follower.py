"""Reads the logs of replicas, and applies their entries to the mirror."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from plumage.directory.client.connection import Client
from plumage.directory.client.redis_pipeline import RedisPipeline
from plumage.directory.mirror.log_reader import LOG_PIECE, OutOfStep, StreamEntry, in_pieces, weight
from plumage.directory.mirror.read_failures import ReadFailures
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.schema import NewerSchemaError, SchemaError

__all__ = ["LogFollower"]

BLOCK_MS = 100  # how long a read waits for entries; a new replica is read in the next turn
PACE = 0.010  # seconds between reads: one read takes the entries of several steps
ENTRIES_AT_ONCE = 200  # of each replica


class LogFollower:
    """counts: gets `entries` and `changes`."""

    def __init__(self, client: Client, failures: ReadFailures, counts: Counter[str]) -> None:
        self._client = client
        self._pipeline = RedisPipeline(client)
        self._failures = failures
        self._counts = counts

    async def close(self) -> None:
        await self._pipeline.close()

    async def read(self, replicas: Iterable[ReplicaView]) -> None:
        """Read the logs of these replicas once, with one command."""
        logs = {known.log.encode(): known for known in replicas if known.live}
        taken = 0  # since the last sleep; to sleep after each replica would take seconds with a thousand of them
        for key, entries in await self._fetch(logs):
            for piece in in_pieces(entries):
                self._take(logs[key], key, piece)
                taken += sum(map(weight, piece))
                if taken >= LOG_PIECE:
                    taken = 0
                    await asyncio.sleep(0)
        for known in logs.values():
            known.reads += 1
        await asyncio.sleep(PACE)

    async def _fetch(self, logs: Mapping[bytes, ReplicaView]) -> list[tuple[bytes, list[StreamEntry]]]:
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

    def _take(self, known: ReplicaView, key: bytes, entries: list[StreamEntry]) -> None:
        """Apply the entries, unless the replica no longer follows this log: a snapshot may have begun since."""
        if not known.live or known.log.encode() != key:
            return
        failures = self._failures
        try:
            self._counts["changes"] += known.reader.take(entries)
            self._counts["entries"] += len(entries)
        except OutOfStep as error:
            known.want(error.reason)
            failures.poll()
        except NewerSchemaError:
            known.unreadable = known.reader.epoch
            failures.newer(known)
        except SchemaError as error:
            failures.malformed(known, error)
            failures.postpone(known, "malformed")
        except Exception as error:  # a bug here would come again, before the entries of all other replicas
            failures.unexpected(error)
            failures.postpone(known, "failed")


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Name, value, name, value, …"""
    return dict(zip(flat[::2], flat[1::2], strict=True))
