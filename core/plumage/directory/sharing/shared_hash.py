"""Values of several participants in one hash of the server: each replaces its own field as a whole.

`exchange()` stores `mine` and reads the values of others into `others`. A value carries the schema's version and the
time when it was written. Values older than `lifetime` are ignored. Values of a newer schema, and values that are too
long, are ignored and counted. Each reader removes all but the newest `MOST` values. The hash lives on while one
participant renews it. Clocks of several machines are compared, so a lifetime should be hours, not seconds. A
participant with a wrong clock does not get the values of others.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError

from plumage.directory.client.connection import Client
from plumage.directory.schema import SCHEMA_VERSION, NewerSchemaError, SchemaError, check_version

__all__ = ["MOST", "MOST_BYTES", "SharedHash"]

MOST = 64
MOST_BYTES = 1 << 20
HEAD = struct.Struct("<Bd")  # version, seconds since 1970


class SharedHash:
    """One participant, called `name`.

    lifetime: seconds. mine: our value, or None. others: name → (age in seconds, value). rounds: exchanges that
    succeeded. counts: sent, read, newer_schema, malformed, too_long."""

    def __init__(
        self, client: Client, key: str, name: str, *, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.mine: bytes | None = None
        self.others: dict[str, tuple[float, bytes]] = {}
        self.rounds = 0
        self.counts: Counter[str] = Counter()
        self._client = client
        self._key = key
        self._name = name
        self._lifetime = lifetime
        self._clock = clock

    async def exchange(self) -> None:
        """Store our value and read the others. UNAVAILABLE: the server failed; `others` does not change."""
        if self.mine is not None:
            await self._store(self.mine)
        found: Any = await self._client.hgetall(self._key)
        found.pop(self._name.encode(), None)
        await self._take(found)
        self.rounds += 1

    async def _store(self, value: bytes) -> None:
        if len(value) > MOST_BYTES:
            self.counts["too_long"] += 1
            return
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._key, self._name, HEAD.pack(SCHEMA_VERSION, self._clock()) + value)
        pipe.expire(self._key, int(self._lifetime))
        await pipe.execute()
        self.counts["sent"] += 1

    async def _take(self, found: dict[bytes, bytes]) -> None:
        now = self._clock()
        written = sorted(self._readable(found), reverse=True)
        fresh = [(at, name) for at, name in written[:MOST] if now - at < self._lifetime]
        self.others = {_text(name): (max(0.0, now - at), found[name][HEAD.size :]) for at, name in fresh}
        self.counts["read"] += len(fresh)
        if len(written) > MOST:
            with suppress(NoPermissionError):  # an ACL user without HDEL: they expire with the hash
                await self._client.hdel(self._key, *(name for _, name in written[MOST:]))

    def _readable(self, found: dict[bytes, bytes]) -> Iterator[tuple[float, bytes]]:
        """(when it was written, its field) of each valid value."""
        for name, value in found.items():
            try:
                yield _written(value), name
            except NewerSchemaError:
                self.counts["newer_schema"] += 1
            except SchemaError:
                self.counts["malformed"] += 1


def _written(value: bytes) -> float:
    if not value:
        raise SchemaError("an empty value")
    check_version(value[0])
    if not HEAD.size <= len(value) <= HEAD.size + MOST_BYTES:
        raise SchemaError(f"a value of {len(value)} bytes")
    written: float = HEAD.unpack_from(value)[1]
    if not 0.0 <= written < 1e12:
        raise SchemaError("a value with an invalid time")
    return written


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
