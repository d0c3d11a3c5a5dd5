"""A port with TLS: requests, renewed certificates, and clients that break the handshake or leave it open."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.port_certificates import PortCertificate
from support.ports import free_port

from plumage.settings.router_config import MultiPoolConfig
from plumage_router.http import tls as tls_module
from plumage_router.http.tls import HandshakeFailure
from plumage_router.multi_pool.server import MultiPoolServer

EXPIRY = "plumage_router_certificate_expiry_timestamp_seconds"


@pytest.fixture
def certificate(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "tls")


def with_tls(certificate: PortCertificate) -> dict[str, Any]:
    return {"port": 0, "tls": certificate.settings}


class Client:
    """A client's connection over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def certificate(self) -> bytes:
        """The router's, in DER."""
        shown = self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown


@asynccontextmanager
async def connected(running: Any, context: ssl.SSLContext) -> AsyncIterator[Client]:
    async with asyncio.timeout(30):
        client = Client(*await asyncio.open_connection("127.0.0.1", running.port, ssl=context))
    try:
        yield client
    finally:
        client.writer.transport.abort()


async def shown(running: Any, context: ssl.SSLContext) -> bytes:
    async with connected(running, context) as client:
        return client.certificate


async def test_clients_are_served_over_tls_only(
    start: Any, kit: Any, certificate: PortCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    url = f"https://127.0.0.1:{running.port}"
    async with httpx.AsyncClient(base_url=url, verify=certificate.client(), timeout=30, trust_env=False) as client:
        whole = await client.post("/v1/chat/completions", json=kit.chat())
        stream = await client.post("/v1/chat/completions", json=kit.chat(stream=True))
        page = (await client.get("/metrics")).text
    assert whole.json()["choices"][0]["message"]["content"] == "one two chat-0"
    assert stream.text.rstrip().endswith("data: [DONE]")
    assert f"{EXPIRY} {running.router.pool.tls.certificate.expires:.0f}" in page
    caplog.clear()
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{running.port}/health")
    await kit.until(lambda: running.router.pool.tls.failed[HandshakeFailure.PLAIN_HTTP] == 1)
    await kit.until(lambda: not running.router.pool.connections)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_answer_without_length_ends_with_close_notify(start: Any, kit: Any, certificate: PortCertificate) -> None:
    """Of an HTTP/1.0 client, which sees the end of a stream by the end of the connection."""
    running = await start(engines=1, listen=with_tls(certificate))
    request = kit.request(kit.chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")

    def read_all() -> bytes:
        """Raises SSLEOFError if the connection ends without a close_notify."""
        plain = socket.create_connection(("127.0.0.1", running.port), timeout=10)
        with certificate.client().wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as secure:
            secure.sendall(request)
            return b"".join(iter(lambda: secure.recv(65_536), b""))

    assert (await asyncio.to_thread(read_all)).rstrip().endswith(b"data: [DONE]")
    await kit.until(lambda: not running.router.pool.connections, 10)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_protocols(start: Any, certificate: PortCertificate, version: ssl.TLSVersion) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    context = certificate.client()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with connected(running, context) as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_older_protocol_is_refused(start: Any, kit: Any, certificate: PortCertificate) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    context = certificate.client()
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(running, context)
    await kit.until(lambda: running.router.pool.tls.failed[HandshakeFailure.PROTOCOL] == 1)


async def test_renewed_certificate_interrupts_nobody(start: Any, kit: Any, certificate: PortCertificate) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    engine, go, context = running.engines[0], asyncio.Event(), certificate.client()

    async def in_two_parts(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("before ")))
        await go.wait()
        writer.write(kit.chunked(kit.token("after")) + kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    async with connected(running, context) as idle, connected(running, context) as streaming:
        idle.writer.write(kit.request(kit.chat()))
        assert (await kit.read_answer(idle.reader)).status == 200
        engine.answer = in_two_parts
        streaming.writer.write(kit.request(kit.chat(stream=True)))
        async with asyncio.timeout(30):
            head = await streaming.reader.readuntil(b"before ")
        old, new = idle.certificate, certificate.renew(days=60)
        running.router.pool.refresh_keys()
        assert old != new
        assert await shown(running, context) == new
        go.set()
        async with asyncio.timeout(30):
            rest = await streaming.reader.readuntil(b"0\r\n\r\n")
        assert b"200 OK" in head
        assert b"after" in rest
        engine.answer = engine.normally
        for client in (idle, streaming):
            client.writer.write(kit.request(kit.chat()))
            assert (await kit.read_answer(client.reader)).status == 200
            assert client.certificate == old
    assert running.router.pool.tls.certificate.failures == 0


async def test_unusable_pair_changes_nothing(
    start: Any, kit: Any, certificate: PortCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    used, context = running.router.pool.tls.certificate, certificate.client()
    before = await shown(running, context)
    (chain, _), (_, other_key) = certificate.issue(), certificate.issue()
    unusable = (chain, b"-----BEGIN CERTIFICATE-----\nno\n", chain[: len(chain) // 2])
    for number, content in enumerate(unusable, 1):
        certificate.put(content, other_key)
        running.router.pool.refresh_keys()
        assert await shown(running, context) == before
        assert (used.failures, running.router.pool.port_keys_error is None) == (number, False)
    assert "stay in force" in caplog.text
    assert "PRIVATE" not in caplog.text
    new = certificate.renew()
    running.router.pool.refresh_keys()
    assert await shown(running, context) == new
    assert running.router.pool.port_keys_error is None


async def test_unfinished_handshakes_end_in_time(start: Any, kit: Any, certificate: PortCertificate) -> None:
    running = await start(engines=1, listen=with_tls(certificate), timeouts={"handshake": 0.5})
    tls = running.router.pool.tls
    silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
    await kit.until(lambda: tls.handshakes == 3)
    assert not running.router.pool.connections
    for reader, writer in silent:
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.transport.abort()
    await kit.until(lambda: tls.handshakes == 0)
    assert tls.failed[HandshakeFailure.TIMEOUT] == 3


async def test_silent_clients_do_not_lock_others_out(
    start: Any, kit: Any, certificate: PortCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "_YOUNG", 0.3)
    limits, timeouts = {"maxHandshakes": 4}, {"handshake": 600}
    running = await start(engines=1, listen=with_tls(certificate), limits=limits, timeouts=timeouts)
    tls, most = running.router.pool.tls, 0
    silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(8)]
    for _ in range(3):
        async with connected(running, certificate.client()) as client:
            most = max(most, tls.handshakes)
            client.writer.write(kit.request(kit.chat()))
            assert (await kit.read_answer(client.reader)).status == 200
    assert most <= 4
    assert tls.failed[HandshakeFailure.REPLACED] > 0
    for _, writer in silent:
        writer.transport.abort()
    await kit.until(lambda: not tls.handshakes)


async def test_connections_beyond_the_bound_wait(start: Any, kit: Any, certificate: PortCertificate) -> None:
    """All handshakes are young, so the router accepts no further one, and goes on once one has ended."""
    running = await start(engines=1, listen=with_tls(certificate), limits={"maxHandshakes": 2})
    tls = running.router.pool.tls
    young = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
    await kit.until(lambda: tls.handshakes == 2)
    waiting = asyncio.create_task(shown(running, certificate.client()))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert tls.handshakes == 2
    for _, writer in young:
        writer.transport.abort()
    async with asyncio.timeout(30):
        assert await waiting
    assert tls.failed[HandshakeFailure.CLOSED] == 2


async def test_connections_count_once_their_handshake_ended(start: Any, kit: Any, certificate: PortCertificate) -> None:
    running = await start(engines=1, listen=with_tls(certificate), limits={"maxConnections": 1})
    context = certificate.client()
    async with connected(running, context), connected(running, context) as second:
        async with asyncio.timeout(30):
            refused = await kit.read_answer(second.reader)
        assert refused.status == 503
    await kit.until(lambda: not running.router.pool.connections)


async def test_slow_reader_gets_the_last_answer(start: Any, kit: Any, certificate: PortCertificate) -> None:
    """It reads nothing for longer than a closing connection lingers, then everything."""
    running = await start(engines=1, listen=with_tls(certificate))
    size = 4 << 20

    async def large(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size)
        writer.write(b"1" * size)

    running.engines[0].answer = large
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=certificate.client(), limit=1024)
    writer.write(kit.request(kit.chat(), connection="close"))
    await asyncio.sleep(3)
    async with asyncio.timeout(30):
        everything = await reader.read()
    assert everything.count(b"1" * 1024) >= size // 1024 - 1
    assert len(everything) > size
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.connections)


async def test_client_that_leaves_aborts_its_request(start: Any, kit: Any, certificate: PortCertificate) -> None:
    running = await start(engines=1, listen=with_tls(certificate))
    engine = running.engines[0]
    engine.answer = kit.endless
    async with connected(running, certificate.client()) as client:
        client.writer.write(kit.request(kit.chat(stream=True)))
        async with asyncio.timeout(30):
            await client.reader.readuntil(b"word 1")
        client.writer.close()  # close_notify
        await asyncio.wait_for(engine.closed.wait(), 30)
    await kit.until(lambda: not running.router.pool.connections)


async def test_silent_client_does_not_delay_the_end(start: Any, kit: Any, certificate: PortCertificate) -> None:
    """It has an idle connection, does not read, and so does not answer the close_notify."""
    running = await start(engines=1, listen=with_tls(certificate))
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as plain:
        secure = await asyncio.to_thread(certificate.client().wrap_socket, plain, server_hostname="127.0.0.1")
        await kit.until(lambda: running.router.pool.connections and not running.router.pool.tls.handshakes)
        async with asyncio.timeout(10):  # less than the drain timeout
            await running.router.stop(drain_seconds=60)
        secure.close()


async def test_unix_socket_has_no_tls(start: Any, kit: Any, certificate: PortCertificate, tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    await start(engines=1, listen={**with_tls(certificate), "uds": str(path)})
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(kit.request(kit.chat()))
    assert (await kit.read_answer(reader)).status == 200
    writer.transport.abort()


async def test_gateway_serves_over_tls(kit: Any, certificate: PortCertificate) -> None:
    server = MultiPoolServer(
        MultiPoolConfig.model_validate({"gateway": "front", "listen": with_tls(certificate), "pools": []})
    )
    await server.start()
    try:
        url = f"https://{server.addresses[0]}"
        async with httpx.AsyncClient(base_url=url, verify=certificate.client(), timeout=30, trust_env=False) as client:
            page = (await client.get("/metrics")).text
            assert (await client.get("/health")).status_code == 200
        assert f"{EXPIRY} " in page
        (chain, _), (_, other_key) = certificate.issue(), certificate.issue()
        certificate.put(chain, other_key)
        server.dispatcher.refresh_keys()
        assert server.dispatcher.port_keys_error is not None
    finally:
        await server.stop(drain_seconds=0)


async def test_process_follows_its_secret(kit: Any, certificate: PortCertificate, tmp_path: Path) -> None:
    """The whole process: a renewal, a plain client, and an orderly end."""
    engine = kit.Engine("chat-0")
    await engine.start()
    members = tmp_path / "members.json"
    replica = {"id": "chat-0", "url": f"http://127.0.0.1:{engine.port}", "agent": None, "state": "Ready"}
    members.write_text(json.dumps({"pool": "chat", "replicas": [replica]}))
    port = free_port()
    file = tmp_path / "router.json"
    listen = {"port": port, "tls": certificate.settings}
    model = {"name": "tiny", "modelFolder": "builtin://tiny-chat"}
    file.write_text(
        json.dumps({"pool": "chat", "model": model, "membershipFile": str(members), "listen": listen, "seed": 1})
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = forks.start("plumage_router", f"--config={file}", output=output)
    try:
        url = f"https://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, verify=certificate.client(), timeout=30, trust_env=False) as client:
            async with asyncio.timeout(60):
                while not await _healthy(client):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            certificate.renew(days=90)
            await kit.until(lambda: "reloaded" in log.read_text(), 30)
            answer = await client.post("/v1/chat/completions", json=kit.chat())
            assert answer.json()["choices"][0]["message"]["content"] == "one two chat-0"
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(f"http://127.0.0.1:{port}/health")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        await engine.stop()
    assert "Traceback" not in log.read_text()


async def _healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False
