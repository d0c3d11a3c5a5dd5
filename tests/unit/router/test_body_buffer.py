"""A body in many small parts takes the memory that is counted for it."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.http.body_memory import BodyMemory, BodyReservation
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.errors import RequestError
from plumage_router.http.request import Request

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
SIZE = 70_000  # bytes of body


class Host:
    """Takes requests and answers none."""

    def __init__(self) -> None:
        self.limits, self.timeouts = LimitsConfig(), TimeoutsConfig()
        self.tick, self.date = 0.0, b""
        self.body_memory = BodyMemory(self.limits.max_buffered_bytes)
        self.taken: list[Request] = []
        self.bodies: list[bytes] = []

    def opened(self, connection: DownstreamConnection) -> None:
        return None

    def closed(self, connection: DownstreamConnection) -> None: ...

    def handler(self, request: Request, connection: DownstreamConnection) -> Any:
        self.taken.append(request)
        self.bodies.append(request.body.whole())
        return self

    def start(self) -> None: ...

    def abort(self) -> None: ...

    def admit(self, request: Request) -> None:
        request.reservation = BodyReservation()

    def refused(self, error: RequestError) -> bytes:
        raise AssertionError(error)


@pytest.fixture
def host() -> Host:
    return Host()


def connected(host: Host) -> DownstreamConnection:
    loop = SimpleNamespace(call_soon=lambda call: call())
    connection = DownstreamConnection(cast(Any, host), cast(asyncio.AbstractEventLoop, loop))
    transport = SimpleNamespace(get_extra_info=lambda name: ("127.0.0.1", 1))
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    return connection


@pytest.mark.parametrize("part", [1, 2, 7])
def test_tiny_chunks_take_the_counted_memory(host: Host, part: int) -> None:
    connection = connected(host)
    connection.data_received(HEAD)
    packet, packets = b"%x\r\n%b\r\n" % (part, b"x" * part) * 100, SIZE // part // 100
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(packets):
        connection.data_received(packet)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert host.body_memory.used == packets * 100 * part
    assert held < 1.3 * host.body_memory.used
    connection.data_received(b"0\r\n\r\n")
    [request] = host.taken
    assert request.body.whole() == b"x" * host.body_memory.used
    connection.connection_lost(None)
    assert host.body_memory.used == 0


def test_body_equals_its_parts(host: Host) -> None:
    connection = connected(host)
    connection.data_received(HEAD + b"3\r\nabc\r\n0\r\n\r\n")
    connection.data_received(HEAD + b"3\r\nabc\r\n")
    connection.data_received(b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n" + HEAD + b"0\r\n\r\n" + HEAD)
    mixed = [bytes([65 + number]) * size for number, size in enumerate((1, 5000, 1, 1, 3, 5000, 5000, 2, 1))]
    for part in mixed:
        connection.data_received(b"%x\r\n%b\r\n" % (len(part), part))
    connection.data_received(b"0\r\n\r\n")
    for _ in range(3):
        connection.done(keep_alive=True)
    assert host.bodies == [b"abc", b"abcdef", b"", b"".join(mixed)]
    assert all(type(body) is bytes for body in host.bodies)
    connection.connection_lost(None)
    assert host.body_memory.used == 0


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        (("192.0.2.7", 5), "192.0.2.7"),
        (("::ffff:192.0.2.7", 5, 0, 0), "::ffff:192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_ipv6_client_is_its_network(host: Host, name: Any, peer: str) -> None:
    transport = SimpleNamespace(get_extra_info=lambda _: name)
    connection = DownstreamConnection(cast(Any, host), cast(asyncio.AbstractEventLoop, None))
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    assert connection.peer == peer
