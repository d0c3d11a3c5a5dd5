"""The picker's port beside clients that do what no proxy should: on real sockets, also over TLS."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.ext_proc import METHOD, ext_proc
from support.http2_client import Http2Client
from support.http2_peer import CALM, DATA, HEADERS, PING, RST_STREAM, SETTINGS_TIMEOUT, WINDOW_UPDATE, frame, message
from support.port_certificates import PortCertificate

PROCESS = METHOD.encode()
CHECK = b"/grpc.health.v1.Health/Check"
NO_WINDOW = struct.pack(">HI", 4, 0)


@pytest.fixture(scope="module")
def protos() -> Any:
    return ext_proc()


Connect = Callable[..., Awaitable[Http2Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Http2Client] = []

    async def begin(running: Any, **more: Any) -> Http2Client:
        port = int(running.router.endpoint_picker.addresses[0].rpartition(":")[2])
        clients.append(await Http2Client.connect(port, **more))
        return clients[-1]

    yield begin
    for client in clients:
        client.close()


def head(protos: Any, *, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """The first message of a call, as Envoy sends it."""
    pairs = {":method": "POST", ":path": path, ":authority": "pool", "content-type": "application/json", **headers}
    values = [protos.HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs.items()]
    sent = protos.ProcessingRequest(request_headers=protos.HttpHeaders(headers=protos.HeaderMap(headers=values)))
    sent.protocol_config.request_body_mode = sent.protocol_config.response_body_mode = 4
    return bytes(sent.SerializeToString())


def body(protos: Any, data: bytes, *, end: bool) -> bytes:
    return bytes(
        protos.ProcessingRequest(request_body=protos.HttpBody(body=data, end_of_stream=end)).SerializeToString()
    )


def data_frames(number: int, *messages: bytes) -> list[bytes]:
    """gRPC messages in frames that any server takes."""
    sent = b"".join(map(message, messages))
    return [frame(DATA, 0, number, sent[at : at + 16_384]) for at in range(0, len(sent), 16_384)]


def refusal(protos: Any, client: Http2Client, number: int) -> Any:
    """The status that the proxy should answer its client with; None if there is none yet."""
    for one in client.messages(number):
        answer = protos.ProcessingResponse.FromString(one)
        if answer.WhichOneof("response") == "immediate_response":
            return answer.immediate_response
    return None


def ended(client: Http2Client, number: int) -> bool:
    return any((kind, stream) == (HEADERS, number) and flags & 1 for kind, flags, stream, _ in client.frames)


def status(client: Http2Client, number: int) -> bytes:
    """The gRPC status of a call that ended."""
    (block,) = [payload for kind, flags, stream, payload in client.frames
                if (kind, stream) == (HEADERS, number) and flags & 1]  # fmt: skip
    at = block.index(b"grpc-status") + len(b"grpc-status")
    return block[at + 1 : at + 1 + block[at]]


async def serves(client: Http2Client, number: int) -> None:
    """The health check is answered."""
    client.request(number, CHECK)
    client.send(frame(DATA, 1, number, message(b"")))
    await client.until(lambda: ended(client, number))
    assert client.messages(number) == [b"\x08\x01"]


async def picked(start: Any, **more: Any) -> Any:
    return await start(engines=1, endpointPicker={"port": 0}, **more)


# -- time -------------------------------------------------------------------------------------------------------------


async def test_client_that_says_nothing_is_disconnected(start: Any, connect: Connect) -> None:
    running = await picked(start, timeouts={"header": 0.3})
    client = await connect(running, begin=False)
    assert await client.leaves() == [(0, SETTINGS_TIMEOUT)]


async def test_idle_client_is_asked_to_leave(start: Any, connect: Connect) -> None:
    running = await picked(start, timeouts={"keepAlive": 0.3})
    client = await connect(running)
    await serves(client, 1)
    assert await client.leaves() == [((1 << 31) - 1, 0), (1, 0)]


async def test_call_without_its_headers_ends(start: Any, connect: Connect) -> None:
    running = await picked(start, timeouts={"header": 0.3})
    client = await connect(running)
    for number, path in ((1, PROCESS), (3, CHECK)):
        client.request(number, path)
        await client.until(lambda number=number: ended(client, number))
        assert status(client, number) == b"4"
    assert not running.router.pool.in_flight


@pytest.mark.parametrize("begun", [False, True])
async def test_call_without_its_body_gets_408(start: Any, connect: Connect, protos: Any, begun: bool) -> None:
    running = await picked(start, timeouts={"body": 0.3, "header": 120})
    client = await connect(running)
    client.request(1, PROCESS)
    client.send(*data_frames(1, head(protos), *([body(protos, b"{", end=False)] if begun else [])))
    await client.until(lambda: ended(client, 1))
    answer = refusal(protos, client, 1)
    assert answer.status.code == 408
    assert json.loads(answer.body)["error"]["code"] == "request_timeout"
    assert running.router.pool.body_memory.used == 0
    await serves(client, 3)


async def test_call_that_is_complete_ends_though_the_proxy_does_not_end_it(
    start: Any, connect: Connect, protos: Any, kit: Any
) -> None:
    running = await picked(start, timeouts={"write": 0.3})
    client = await connect(running)
    client.request(1, PROCESS)
    client.send(*data_frames(1, head(protos), body(protos, json.dumps(kit.chat()).encode(), end=True)))
    values = [protos.HeaderValue(key=":status", raw_value=b"200")]
    response = protos.HttpHeaders(headers=protos.HeaderMap(headers=values), end_of_stream=True)
    await client.until(lambda: len(client.messages(1)) == 2)
    client.send(*data_frames(1, protos.ProcessingRequest(response_headers=response).SerializeToString()))
    await client.until(lambda: ended(client, 1))
    assert status(client, 1) == b"4"


# -- memory -----------------------------------------------------------------------------------------------------------


async def test_body_counts_until_the_proxy_has_it(start: Any, connect: Connect, protos: Any, kit: Any) -> None:
    running = await picked(start, model={"maxLength": 400_000})
    pool = running.router.pool
    client = await connect(running, settings=NO_WINDOW)
    sent = json.dumps(kit.chat("word " * 60_000)).encode()
    client.request(1, PROCESS)
    client.send(*data_frames(1, head(protos), body(protos, sent, end=True)))
    await kit.until(lambda: len(pool.decisions.audit) == 1)
    assert len(sent) <= pool.body_memory.used < len(sent) + 4_096
    client.send(frame(WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4)), frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4)))
    await kit.until(lambda: pool.body_memory.used == 0)
    await client.until(lambda: len(client.data(1)) > len(sent))


async def test_bodies_that_were_taken_are_not_refused_while_they_wait(
    start: Any, connect: Connect, protos: Any, kit: Any
) -> None:
    """A proxy's share of the memory is for bodies that arrive. Complete ones of its clients may take more."""
    limits = {"maxBufferedBytes": 4 << 20, "maxBodyBytes": 1 << 20}
    running = await picked(start, model={"maxLength": 800_000}, limits=limits)
    pool, client = running.router.pool, await connect(running, settings=NO_WINDOW)
    sent = json.dumps(kit.chat("word " * 200_000)).encode()
    for number in (1, 3, 5):
        client.request(number, PROCESS)
        client.send(*data_frames(number, head(protos), body(protos, sent, end=True)))
        await kit.until(lambda count=number // 2 + 1: len(pool.decisions.audit) == count)
    assert pool.body_memory.used >= 3 * len(sent)
    assert len(pool.in_flight) == 3
    assert not any(kind == RST_STREAM for kind, *_ in client.frames)


@pytest.mark.parametrize("how", ["reset", "late", "lost"])
async def test_body_that_waits_is_freed(start: Any, connect: Connect, protos: Any, kit: Any, how: str) -> None:
    running = await picked(start, model={"maxLength": 400_000}, timeouts={"write": 0.3 if how == "late" else 60})
    pool = running.router.pool
    client = await connect(running, settings=NO_WINDOW)
    sent = json.dumps(kit.chat("word " * 60_000)).encode()
    client.request(1, PROCESS)
    client.send(*data_frames(1, head(protos), body(protos, sent, end=True)))
    await kit.until(lambda: len(pool.decisions.audit) == 1)
    if how == "reset":
        client.send(frame(RST_STREAM, 0, 1, b"\x00" * 4))
    elif how == "lost":
        client.close()
    await kit.until(lambda: pool.body_memory.used == 0)
    await kit.until(lambda: not pool.in_flight)
    assert len(pool.body_memory) == 0


async def test_messages_without_an_end_are_refused_for_want_of_memory(
    start: Any, connect: Connect, protos: Any, kit: Any
) -> None:
    """Connections of one proxy together get half of the memory: no more, and others are still served."""
    total = 4 << 20
    running = await picked(start, limits={"maxBufferedBytes": total, "maxBodyBytes": 1 << 20})
    pool, first, second = running.router.pool, await connect(running), await connect(running)
    rest = b"\x00" + (4 << 20).to_bytes(4) + b"x" * 500_000
    for number in range(1, 20, 2):
        for client in (first, second):
            client.request(number, PROCESS)
            client.send(*data_frames(number, head(protos)))
            client.send(*[frame(DATA, 0, number, rest[at : at + 16_384]) for at in range(0, len(rest), 16_384)])
    await kit.until(lambda: pool.metrics.responses[503] >= 20 - total // 500_000)
    assert pool.body_memory.used <= total // 2
    await serves(first, 101)
    for client in (first, second):
        client.close()
    await kit.until(lambda: pool.body_memory.used == 0)


async def test_large_headers_are_refused(start: Any, connect: Connect, protos: Any) -> None:
    """By the bound of the router's own port."""
    running = await picked(start, limits={"maxHeaderBytes": 10_000})
    client = await connect(running)
    for number, size, code in ((1, 9_000, None), (3, 10_000, 431)):
        client.request(number, PROCESS)
        client.send(*data_frames(number, head(protos, **{"x-large": "x" * size}), body(protos, b"{", end=True)))
        await client.until(lambda number=number: ended(client, number))
        assert (refusal(protos, client, number).status.code == 431) is (code is not None)


# -- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flood", ["pings", "resets"])
async def test_flood_ends_its_connection_alone(start: Any, connect: Connect, flood: str) -> None:
    running = await picked(start)
    client, other = await connect(running), await connect(running)
    for number in range(3, 6_003, 2):
        if flood == "pings":
            client.send(frame(PING, 0, 0, b"12345678"))
        else:
            client.request(number, PROCESS)
            client.send(frame(RST_STREAM, 0, number, (8).to_bytes(4)))
    ((_, code),) = await client.leaves()
    assert code == CALM
    await serves(other, 1)
    assert not running.router.pool.in_flight


# -- drain ------------------------------------------------------------------------------------------------------------


async def test_drain_asks_proxies_twice_and_ends_what_began(
    start: Any, connect: Connect, protos: Any, kit: Any
) -> None:
    """RFC 9113 §6.8."""
    running = await picked(start)
    client = await connect(running)
    client.answers_pings = False
    client.request(1, PROCESS)
    client.send(*data_frames(1, head(protos)))
    await serves(client, 3)
    stopping = asyncio.ensure_future(running.router.stop(drain_seconds=30))
    await client.until(lambda: any(kind == 7 for kind, *_ in client.frames))
    await serves(client, 5)
    (ping,) = [payload for kind, flags, _, payload in client.frames if (kind, flags) == (PING, 0)]
    client.send(frame(PING, 1, 0, ping))
    await client.until(lambda: sum(kind == 7 for kind, *_ in client.frames) == 2)
    client.request(7, CHECK)
    await client.until(lambda: (RST_STREAM, 0, 7, (7).to_bytes(4)) in client.frames)
    assert not stopping.done()
    client.send(frame(RST_STREAM, 0, 1, (8).to_bytes(4)))
    assert await client.leaves() == [((1 << 31) - 1, 0), (5, 0)]
    await asyncio.wait((stopping,), timeout=30)
    assert stopping.done()


async def test_drain_ends_by_its_timeout(start: Any, connect: Connect) -> None:
    running = await picked(start)
    client = await connect(running)
    client.request(1, PROCESS)
    await serves(client, 3)
    async with asyncio.timeout(30):
        await running.router.stop(drain_seconds=0.3)
    assert (await client.leaves())[-1] == (3, 0)


async def test_router_that_leaves_asks_its_proxies_to_leave(start: Any, connect: Connect) -> None:
    running = await picked(start, timeouts={"leave": 0.2})
    client = await connect(running)
    await serves(client, 1)
    leaving = asyncio.ensure_future(running.router.leave())
    assert await client.leaves() == [((1 << 31) - 1, 0), (1, 0)]
    late = await connect(running)
    await serves_or_not(late, 1)
    await asyncio.wait((leaving,), timeout=30)
    assert leaving.done()


async def serves_or_not(client: Http2Client, number: int) -> None:
    """Answered at least: a router that leaves is not ready."""
    client.request(number, CHECK)
    client.send(frame(DATA, 1, number, message(b"")))
    await client.until(lambda: ended(client, number))
    assert client.messages(number) == [b"\x08\x02"]


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_port_has_the_routers_certificate_and_its_renewals(
    start: Any, connect: Connect, kit: Any, tmp_path: Path
) -> None:
    certificate = PortCertificate(tmp_path / "tls")
    running = await picked(start, listen={"port": 0, "tls": certificate.settings})
    context = certificate.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    first = await connect(running, tls=context)
    await serves(first, 1)
    shown = first.writer.get_extra_info("ssl_object")
    assert shown.selected_alpn_protocol() == "h2"
    old, new = shown.getpeercert(binary_form=True), certificate.renew(days=60)
    running.router.pool.refresh_keys()
    second = await connect(running, tls=context)
    await serves(second, 1)
    assert old != second.writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == new
    await serves(first, 3)
    plain = await connect(running)
    await plain.until(lambda: plain.ended)
    acceptor = running.router.endpoint_picker.tls
    await kit.until(lambda: sum(acceptor.failed.values()) == 1)
    assert not any(one.handshakes for one in running.router.pool.tls_acceptors)
    (certificate.folder / "..data" / "tls.crt").write_text("no certificate")
    running.router.pool.refresh_keys()
    assert running.router.pool.port_keys_error.count("are not a certificate and its key") == 1


async def test_drain_over_tls(start: Any, connect: Connect, tmp_path: Path) -> None:
    certificate = PortCertificate(tmp_path / "tls")
    running = await picked(start, listen={"port": 0, "tls": certificate.settings})
    context = certificate.client()
    context.set_alpn_protocols(["h2"])
    client = await connect(running, tls=context)
    await serves(client, 1)
    async with asyncio.timeout(30):
        await running.router.stop(drain_seconds=10)
    assert await client.leaves() == [((1 << 31) - 1, 0), (1, 0)]
