"""Records of what each tenant used of each model, for bills.

A record has what was used since the record before it, so the sum of all records is what was used. Records are lines of
standard output, which nobody changes later. A killed router loses at most the last `INTERVAL`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from plumage_router.proxy.tenant_usage import Sums, TenantUsage

__all__ = ["UsageLines", "UsageLog"]

INTERVAL: Final = 10.0  # seconds
_AT_ONCE: Final = 200  # records that are made before requests get their turn


class UsageLines(Protocol):
    """Where the records go: `http.json_lines.JsonLines`."""

    dropped: int

    def offer(self, line: Mapping[str, Any]) -> bool:
        """Takes a record. Returns False while it cannot."""
        ...

    def close(self) -> None: ...


class UsageLog:
    """Writes the records of a pool's router, and is the only reader of its usage's `changed`.

    lines: takes the records. wall: Unix seconds.

    `router`: names this process, also among others of the same name. A record's `sequence` grows by one, so that a
    reader sees what was lost or came twice.
    """

    def __init__(
        self,
        usage: TenantUsage,
        lines: UsageLines,
        *,
        wall: Callable[[], float],
        pool: str,
        router: str,
    ) -> None:
        self._usage = usage
        self.lines = lines
        self._wall = wall
        self._pool = pool
        self._router = router
        self._written: dict[tuple[str, str], Sums] = {}
        self._sequence = 0

    def write(self) -> Iterator[None]:
        """Writes a record for each tenant and model with requests since the last, some at each step. What is refused
        is in the next."""
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds")
        for number, (tenant, model) in enumerate(list(self._usage.changed), start=1):
            sums = self._usage.sums[tenant, model]
            more = sums.minus(self._written.get((tenant, model), Sums()))
            record = {
                "log": "usage",
                "time": at,
                "pool": self._pool,
                "router": self._router,
                "sequence": self._sequence + 1,
                "tenant": tenant or None,
                "model": model,
                "requests": more.requests,
                "estimatedRequests": more.estimated,
                "promptTokens": more.prompt,
                "cachedTokens": more.cached,
                "outputTokens": more.output,
            }
            if not self.lines.offer(record):
                return
            self._sequence += 1
            self._written[tenant, model] = sums.minus(Sums())
            del self._usage.changed[tenant, model]
            if number % _AT_ONCE == 0:
                yield

    async def run(self) -> None:
        """Writes records forever."""
        while True:
            await asyncio.sleep(INTERVAL)
            for _ in self.write():
                await asyncio.sleep(0)

    def finish(self) -> int:
        """Writes what is left. Returns the number of tenants and models whose records were refused."""
        for _ in self.write():
            pass
        return len(self._usage.changed)

    def close(self) -> int:
        """Calls `finish` and closes the lines. Returns what `finish` does."""
        lost = self.finish()
        self.lines.close()
        return lost
