"""The router's own look at each engine: GET /health, once an interval, whatever the directory says.

Two failures in a row make a replica unhealthy, one success makes it healthy again and lets its breaker try, so that an
engine that came back is used within an interval.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from plumage_router.clock import monotonic
from plumage_router.patience import within
from plumage_router.replicas import Fleet, Replica

__all__ = ["Prober"]

FAILURES = 2
AT_ONCE = 64
_REQUEST = b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n"


class Prober:
    """Probes every replica of a fleet. `interval` and `timeout` (s) may be changed while it runs."""

    def __init__(self, fleet: Fleet, *, interval: float, timeout: float) -> None:
        self._fleet = fleet
        self.interval = interval
        self.timeout = timeout
        self._failures: Counter[str] = Counter()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Probes for ever."""
        while True:
            await asyncio.sleep(self.interval)
            await asyncio.gather(*(self._probe(replica) for replica in tuple(self._fleet)))
            known = {replica.id for replica in self._fleet}
            for gone in self._failures.keys() - known:
                del self._failures[gone]

    async def _probe(self, replica: Replica) -> None:
        async with self._gate:
            well = await self._ask(replica)
        if well:
            self._failures.pop(replica.id, None)
            before, back = replica.breaker.state, not replica.healthy
            replica.healthy = True
            replica.breaker.advance(monotonic())  # without requests nobody else moves it by the clock
            replica.breaker.reached(back=back)
            moved = back or replica.breaker.state is not before
        else:
            self._failures[replica.id] += 1
            moved = replica.healthy and self._failures[replica.id] >= FAILURES
            replica.healthy = replica.healthy and not moved
        if moved:
            self._fleet.changed()

    async def _ask(self, replica: Replica) -> bool:
        """Did the engine answer 200 in time?"""
        try:
            line = await within(self.timeout, _first_line(*replica.member.address()))
        except (OSError, TimeoutError, ValueError):
            return False
        return line.split(b" ", 2)[1:2] == [b"200"]


async def _first_line(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        return await reader.readline()
    finally:
        writer.transport.abort()
