"""The numbers that the routers of a pool count toward tenants' quotas (`plumage.quotas`), on the directory's server.

Each limit of a tenant has a hash for each window: router → `VERSION NUMBER SECONDS`. NUMBER is the router's own number,
SECONDS the time when it was written, since 1970. One exchange writes this router's numbers and reads those of
the others, in one round trip. The keys name a tenant by a digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import xxhash

from plumage.directory.client.connection import close, connect
from plumage.directory.schema import SCHEMA_VERSION, NewerSchemaError, PoolKeys, SchemaError, check_version
from plumage.quotas import Meter

__all__ = ["QuotaShare", "Report"]

MOST_ROUTERS = 256  # whose numbers are read
_WITHOUT_WINDOW_TTL = 60  # seconds


class Report(NamedTuple):
    """A meter of a tenant, and this router's number for it."""

    tenant: str
    meter: Meter
    mine: int


class QuotaShare:
    """One router's part. name: of the router, unique. `counts`: sent, newer_schema, malformed."""

    def __init__(self, url: str, *, pool: str, name: str) -> None:
        self.counts: Counter[str] = Counter()
        self._client = connect(url)
        self._keys = PoolKeys(pool)
        self._name = name.encode()

    async def exchange(self, reports: Sequence[Report], wall: float) -> list[dict[str, tuple[int, float]]]:
        """The other routers' numbers for each report, as `Meter.read` takes them. UNAVAILABLE: the server failed."""
        pipe = self._client.pipeline(transaction=False)
        for tenant, meter, mine in reports:
            seconds = meter.kind.seconds
            key = self._keys.quota(xxhash.xxh3_64_hexdigest(tenant.encode()), meter.kind, meter.window)
            pipe.hset(key, self._name, f"{SCHEMA_VERSION} {mine} {wall:.0f}")
            pipe.expire(key, _WITHOUT_WINDOW_TTL if seconds is None else 2 * seconds)
            pipe.hgetall(key)
        answers: list[Any] = await pipe.execute()
        self.counts["sent"] += len(reports)
        return [self._others(found) for found in answers[2::3]]

    def _others(self, found: Mapping[bytes, bytes]) -> dict[str, tuple[int, float]]:
        numbers: dict[str, tuple[int, float]] = {}
        for name, value in found.items():
            if name == self._name or len(numbers) == MOST_ROUTERS:
                continue
            try:
                version, number, at = value.split()
                check_version(version)
                numbers[name.decode(errors="replace")] = max(0, int(number)), float(at)
            except NewerSchemaError:
                self.counts["newer_schema"] += 1
            except (SchemaError, ValueError):
                self.counts["malformed"] += 1
        return numbers

    async def close(self) -> None:
        await close(self._client)
