"""The numbers that the routers of a pool count toward tenants' quotas (`plumage.quotas`), on the directory's server.

Each limit of a tenant has a hash for each window: router → `VERSION NUMBER SECONDS`. NUMBER is the router's own number,
SECONDS the time when it was written, since 1970. One exchange writes this router's numbers and reads those of the
others, in one round trip. The keys name a tenant by a digest. One more hash has the routers themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import xxhash

from plumage.directory.client.connection import Client, close, connect
from plumage.directory.schema import SCHEMA_VERSION, NewerSchemaError, PoolKeys, SchemaError, check_version
from plumage.quotas import Meter

__all__ = ["QuotaShare", "Report"]

ROUTER_TTL = 60.0  # seconds without a message until a router is not counted
Numbers = dict[str, tuple[int, float]]


class Report(NamedTuple):
    """A meter of a tenant, this router's number for it, and the window of that number."""

    tenant: str
    meter: Meter
    mine: int
    window: int


class QuotaShare:
    """One router's part. name: of the router, unique. `counts`: sent, newer_schema, malformed."""

    def __init__(self, url: str, *, pool: str, name: str) -> None:
        self.counts: Counter[str] = Counter()
        self._client: Client = connect(url)
        self._keys = PoolKeys(pool)
        self._name = name.encode()

    async def exchange(self, reports: Sequence[Report], wall: float) -> list[Numbers]:
        """The other routers' numbers for each report, as `Meter.read` takes them. UNAVAILABLE: the server failed."""
        pipe = self._client.pipeline(transaction=False)
        for report in reports:
            kind, key = report.meter.kind, self._key(report)
            pipe.hset(key, self._name, _packed(report.mine, wall))
            pipe.hgetall(key)
            pipe.expire(key, int(ROUTER_TTL) if kind.seconds is None else 2 * kind.seconds)
        answers: list[Any] = await pipe.execute()
        self.counts["sent"] += len(reports)
        numbers = [dict(self._others(found)) for found in answers[1::3]]
        for report, found in zip(reports, numbers, strict=True):
            if report.meter.kind.seconds is None:
                await self._remove_silent(self._key(report), found, wall)
        return numbers

    async def routers(self, wall: float) -> int:
        """Says that this router is there, and returns how many are, with this one. Removes those that are silent."""
        key = self._keys.quota_routers
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(key, self._name, _packed(0, wall))
        pipe.hgetall(key)
        pipe.expire(key, int(ROUTER_TTL))
        answers: list[Any] = await pipe.execute()
        others = dict(self._others(answers[1]))
        await self._remove_silent(key, others, wall)
        return 1 + len(others)

    async def leave(self) -> None:
        """Leaves the pool: the others may use this router's share."""
        await self._client.hdel(self._keys.quota_routers, self._name)

    def _key(self, report: Report) -> str:
        return self._keys.quota(xxhash.xxh3_64_hexdigest(report.tenant.encode()), report.meter.kind, report.window)

    async def _remove_silent(self, key: str, numbers: Numbers, wall: float) -> None:
        silent = [name for name, (_, at) in numbers.items() if abs(wall - at) > ROUTER_TTL]
        for name in silent:
            del numbers[name]
        if silent:
            await self._client.hdel(key, *silent)

    def _others(self, found: Mapping[bytes, bytes]) -> Iterator[tuple[str, tuple[int, float]]]:
        for name, value in found.items():
            if name == self._name:
                continue
            try:
                version, number, at = value.split()
                check_version(version)
                yield name.decode(errors="replace"), (max(0, int(number)), float(at))
            except NewerSchemaError:
                self.counts["newer_schema"] += 1
            except (SchemaError, ValueError):
                self.counts["malformed"] += 1

    async def close(self) -> None:
        await close(self._client)


def _packed(number: int, wall: float) -> str:
    return f"{SCHEMA_VERSION} {number} {wall:.1f}"
