"""`python -m plumage_bench.benches.operator_scale.pods`: answers for all agents and routers of a cluster whose pods are
objects only. They report the same figures each time, as after past requests, in reports as large as real ones."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec

from plumage.cluster import AGENT_PORT, ROUTER_PORT
from plumage.fleet_report import AgentReport, CurvePoints, HistogramReport, ReplicaReport, RouterReport, WarmupReport
from plumage_bench.benches.operator_scale.objects import ENGINES

__all__ = ["agent_report", "listen", "main", "router_report"]

_BUCKETS: Final = HistogramReport([0.01 * 2**power for power in range(14)], [50 * power for power in range(15)], 90.0)
_DAY: Final = 86_400.0
"""Seconds since their start: all counts of a process that is younger than a minute would count as new."""
_MOST_REQUEST = 16_384  # bytes


def agent_report() -> AgentReport:
    """The report of an engine with a warm cache."""
    return AgentReport(
        "replica", at=_DAY, started=1.0, state="Ready", directory="Here", kv_usage=0.5, cache_tokens=400_000,
        query_tokens=9_000_000, hit_tokens=6_000_000, output_tokens=700_000, hotness=1234.5,
        queue_wait=_BUCKETS, ttft=_BUCKETS, warmup=WarmupReport("Warmed"),
    )  # fmt: skip


def router_report() -> RouterReport:
    """A report with a curve that has the maximal number of points."""
    curve = CurvePoints([6_000.0 * point for point in range(64)], [point / 64 for point in range(64)], 50_000.0)
    replicas = [ReplicaReport(f"replica-{number}", "Ready", routed=100) for number in range(ENGINES)]
    return RouterReport(
        "pool", "router", at=_DAY, started=1.0, directory="Here", requests=700, prompt_tokens=60_000_000,
        cached_tokens=40_000_000, output_tokens=5_000_000, ttft=_BUCKETS, latency=_BUCKETS, curve=curve,
        replicas=replicas,
    )  # fmt: skip


class _Answers(asyncio.Protocol):
    def __init__(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._answer = head.encode() + body
        self._read = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """GET requests have no body, so each ends with an empty line."""
        assert self._transport is not None
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            self._read = self._read[end + 4 :]
            self._transport.write(self._answer)
        if len(self._read) > _MOST_REQUEST:
            self._transport.close()


async def listen() -> list[asyncio.Server]:
    """At the ports of agents and routers, on all addresses."""
    loop, servers = asyncio.get_running_loop(), []
    for port, report in ((AGENT_PORT, agent_report()), (ROUTER_PORT, router_report())):
        answers = partial(_Answers, msgspec.json.encode(report))
        servers.append(await loop.create_server(answers, "0.0.0.0", port))
    return servers


async def main() -> None:
    """Until it is ended."""
    await asyncio.gather(*(server.serve_forever() for server in await listen()))


if __name__ == "__main__":
    asyncio.run(main())
