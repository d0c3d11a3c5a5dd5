"""Checks the health of each engine with GET /health, independently of the directory.

Two failures in a row make a replica unhealthy. One success makes it healthy and lets its breaker try it, so an engine
that came back is used within one interval.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import suppress

from plumage_router.clock import fair_timeout, monotonic
from plumage_router.fleet.replicas import Fleet, Replica
from plumage_router.http.errors import Failure
from plumage_router.http.tls_failures import engine_refused_us, tls_failure
from plumage_router.process.engine_tls import UpstreamTls

__all__ = ["HealthChecker"]

_FAILURES = 2  # in a row, until a replica is unhealthy
_CONCURRENT = 64
_REQUEST = b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n"


class HealthChecker:
    """Checks every replica of a fleet. `interval` and `timeout`: seconds; they may change while it runs."""

    def __init__(self, fleet: Fleet, *, interval: float, timeout: float) -> None:
        self._fleet = fleet
        self.interval = interval
        self.timeout = timeout
        self._failures: Counter[str] = Counter()
        self._semaphore = asyncio.Semaphore(_CONCURRENT)

    async def run(self) -> None:
        """Checks forever."""
        while True:
            await asyncio.sleep(self.interval)
            await asyncio.gather(*(self._check(replica) for replica in tuple(self._fleet)))
            known = {replica.id for replica in self._fleet}
            for gone in self._failures.keys() - known:
                del self._failures[gone]

    async def _check(self, replica: Replica) -> None:
        async with self._semaphore:
            healthy = await self._ask(replica)
        if healthy:
            self._failures.pop(replica.id, None)
            state_before, back = replica.breaker.state, not replica.healthy
            replica.healthy = True
            replica.breaker.advance(monotonic())  # without requests nothing else advances it
            replica.breaker.reached(back=back)
            changed = back or replica.breaker.state is not state_before
        else:
            self._failures[replica.id] += 1
            changed = replica.healthy and self._failures[replica.id] >= _FAILURES
            replica.healthy = replica.healthy and not changed
        if changed:
            self._fleet.changed()

    async def _ask(self, replica: Replica) -> bool:
        """Whether the engine answered 200 in time."""
        failure = None
        try:
            line = await fair_timeout(self.timeout, _first_line(*replica.member.address(), replica.connections.tls))
        except _RefusedError:
            failure, line = Failure.CLIENT_CERTIFICATE_REFUSED, b""
        except ssl.SSLError as error:
            failure, line = tls_failure(error), b""
        except (OSError, TimeoutError, ValueError):
            line = b""
        replica.unhealthy_because = failure
        return line.split(b" ", 2)[1:2] == [b"200"]


class _RefusedError(OSError):
    """The engine does not accept this router's certificate."""


async def _first_line(host: str, port: int, tls: UpstreamTls | None) -> bytes:
    if tls is None:
        reader, writer = await asyncio.open_connection(host, port)
    else:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls.context, server_hostname=tls.server_name)
    line = b""
    try:
        writer.write(_REQUEST)
        with suppress(ConnectionError):
            line = await reader.readline()
        if tls is not None and not line and engine_refused_us(writer.transport):
            raise _RefusedError
        return line
    finally:
        writer.transport.abort()
