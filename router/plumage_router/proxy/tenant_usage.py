"""What each tenant used of each model: counters for scrapes, and records for bills.

A record has what was used since the record before it, so the sum of all records is what was used. Records are lines of
standard output, which nobody changes later. A killed router loses at most the last `INTERVAL`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from plumage.prometheus import exposition

__all__ = ["TenantUsage", "TokensUsed", "UsageLog"]

INTERVAL: Final = 10.0  # seconds
MAX_PAIRS: Final = 10_000  # of a tenant and a model; the requests of further ones are counted together
MAX_SHOWN: Final = 1_000  # pairs with metrics of their own: a scrape of 10,000 would hold the requests for 0.1 s
_AT_ONCE: Final = 200  # records that are made before requests get their turn
_REST: Final = ("*", "*")
_PREFIX: Final = "plumage_router_tenant_"


class TokensUsed(NamedTuple):
    """Tokens of one request. estimated: the engine did not count them."""

    prompt: int
    cached: int
    output: int
    estimated: bool

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    estimated: int = 0  # requests
    prompt: int = 0
    cached: int = 0
    output: int = 0

    def minus(self, other: _Sums) -> _Sums:
        return _Sums(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class TenantUsage:
    """The sums since the router's start, by tenant and model. The tenant is "" where clients need no keys.

    `changed`: the pairs with requests since a reader took them out.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], _Sums] = {}
        self.changed: dict[tuple[str, str], None] = {}

    def add(self, tenant: str, model: str, used: TokensUsed) -> None:
        """Counts a request that an engine answered, at least in part."""
        pair = (tenant, model)
        sums = self.sums.get(pair)
        if sums is None:
            pair = pair if len(self.sums) < MAX_PAIRS else _REST
            sums = self.sums.setdefault(pair, _Sums())
        self.changed[pair] = None
        sums.requests += 1
        sums.estimated += used.estimated
        sums.prompt += used.prompt
        sums.cached += used.cached
        sums.output += used.output

    def lines(self) -> Iterator[str]:
        """The metrics in Prometheus' text format. Beyond `MAX_SHOWN` pairs those that came last count together."""
        shown = dict(islice(self.sums.items(), MAX_SHOWN))
        rest = [sums for pair, sums in islice(self.sums.items(), MAX_SHOWN, None)]
        if rest:
            shown[_REST] = _total([shown.pop(_REST, _Sums()), *rest])
        for name, text, field in (
            ("requests", "Requests that an engine answered, by tenant and model.", "requests"),
            ("estimated_requests", "Of these, requests whose tokens the engine did not report.", "estimated"),
            ("prompt_tokens", "Prompt tokens of these requests.", "prompt"),
            ("cached_tokens", "Of these, tokens found in the cache.", "cached"),
            ("output_tokens", "Answer tokens of these requests.", "output"),
        ):
            values: dict[tuple[str, ...], float] = {pair: getattr(shown[pair], field) for pair in sorted(shown)}
            yield from exposition.counters_by(_PREFIX + name, text, ("tenant", "model"), values)


def _total(several: Sequence[_Sums]) -> _Sums:
    return _Sums(*(sum(getattr(one, field.name) for one in several) for field in fields(_Sums)))


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
        self._written: dict[tuple[str, str], _Sums] = {}
        self._sequence = 0

    def write(self) -> Iterator[None]:
        """Writes a record for each tenant and model with requests since the last, some at each step. What is refused
        is in the next."""
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds")
        for number, (tenant, model) in enumerate(list(self._usage.changed), start=1):
            sums = self._usage.sums[tenant, model]
            more = sums.minus(self._written.get((tenant, model), _Sums()))
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
            self._written[tenant, model] = sums.minus(_Sums())
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
