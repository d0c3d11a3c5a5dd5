"""TLS to engines: what is verified, what a failure costs and says, and renewed certificates."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.port_certificates import PortCertificate
from support.ports import free_port

from plumage.settings.router_config import MultiPoolConfig, RouterConfig
from plumage_router.admin.status import status_document
from plumage_router.fleet.breaker import BreakerState
from plumage_router.multi_pool.server import MultiPoolServer
from plumage_router.server import RouterServer

NAME = "chat-engine.default.svc"
QUICK = {"probeInterval": 0.05}


@pytest.fixture
def engine_certificate(tmp_path: Path) -> PortCertificate:
    """It names the pool's Service. Engines are reached by an address."""
    return PortCertificate(tmp_path / "engine", [NAME])


@pytest.fixture
def client_certificate(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "client", ["routers"])


def trusting(trusted: PortCertificate, own: PortCertificate | None = None, name: str = NAME) -> dict[str, Any]:
    """`engineTls` of a router's settings. own: its own certificate."""
    return {"caFile": str(trusted.authority_file), "serverName": name, **({} if own is None else own.settings)}


def status(running: Any) -> Any:
    """The document for people."""
    return status_document(running.router.pool, decisions=0)


async def test_engines_are_reached_over_tls(start: Any, kit: Any, engine_certificate: PortCertificate) -> None:
    running = await start(
        engines=2, tls=engine_certificate.server(), engineTls=trusting(engine_certificate), timeouts=QUICK
    )
    for _ in range(4):
        whole = await running.post(kit.chat())
        assert whole.json["choices"][0]["message"]["content"].startswith("one two chat-")
        stream = await running.post(kit.chat(stream=True))
        assert stream.body.rstrip().endswith(b"data: [DONE]")
    assert [len(engine.seen) for engine in running.engines] == [4, 4]
    assert all(len(replica.connections._all) == 1 for replica in running.router.pool.fleet), "connections are kept"
    await asyncio.sleep(0.3)  # several health checks
    assert [replica.reason(0.0) for replica in running.router.pool.fleet] == [None, None]
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    assert "plumage_router_engine_tls_reload_failures_total 0\n" in page
    assert "client_certificate_expiry" not in page


def of_other_authority(folder: Path) -> PortCertificate:
    return PortCertificate(folder, [NAME])


def expired(folder: Path) -> PortCertificate:
    certificate = PortCertificate(folder, [NAME])
    certificate.renew(days=-0.5)
    return certificate


def of_another_name(folder: Path) -> PortCertificate:
    return PortCertificate(folder, ["other-engine.default.svc", "127.0.0.1"])


@pytest.mark.parametrize(
    ("make", "trusted", "failure", "fix"),
    [
        (of_other_authority, False, "certificate_untrusted", "ca.crt in spec.engine.tls.secretName must have"),
        (expired, True, "certificate_expired", "renew the one in spec.engine.tls.secretName"),
        (of_another_name, True, "certificate_name", "NAME-engine.NAMESPACE.svc"),
    ],
)
async def test_certificate_that_fails_verification(
    start: Any,
    kit: Any,
    tmp_path: Path,
    engine_certificate: PortCertificate,
    make: Callable[[Path], PortCertificate],
    trusted: bool,
    failure: str,
    fix: str,
) -> None:
    """The request goes to nobody, the error names the fix, and the replica is blamed."""
    shown = make(tmp_path / "shown")
    settings = trusting(shown if trusted else engine_certificate)
    running = await start(engines=2, tls=shown.server(), engineTls=settings, timeouts={"probeInterval": 600})
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert fix in answer.error["message"]
    assert NAME not in answer.error["message"], "an error never has an engine's address"
    pool = running.router.pool
    assert pool.metrics.retries[failure] == 1
    assert [replica.breaker.state for replica in pool.fleet] == [BreakerState.OPEN] * 2, "as after a refused connection"
    assert [engine.seen for engine in running.engines] == [[], []]
    assert not pool.quarantine.cases, "nothing points to the request"


async def test_status_says_why_a_replica_is_away(start: Any, kit: Any, engine_certificate: PortCertificate) -> None:
    running = await start(
        engines=1, tls=engine_certificate.server(), timeouts=QUICK,
        engineTls=trusting(engine_certificate, name="other-engine.default.svc"),
    )  # fmt: skip
    pool = running.router.pool
    [replica] = pool.fleet
    await kit.until(lambda: not replica.healthy)
    [shown] = status(running)["replicas"]
    assert shown["state"] == "Unhealthy"
    assert "its certificate has another name" in shown["why"]
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (503, "no_replica")
    assert "spec.engine.tls.secretName" in answer.error["message"]


async def test_replica_with_another_certificate_is_left(
    start: Any, kit: Any, engine_certificate: PortCertificate, tmp_path: Path
) -> None:
    """One of two replicas fails verification: its requests go to the other one."""
    running = await start(engines=1, tls=engine_certificate.server(), engineTls=trusting(engine_certificate))
    stranger = kit.Engine("chat-1", of_other_authority(tmp_path / "other").server())
    await stranger.start()
    running.engines.append(stranger)
    running.write_members()
    await kit.until(lambda: len(running.router.pool.fleet) == 2)
    for _ in range(6):
        assert (await running.post(kit.chat())).status == 200
    assert stranger.seen == []


async def test_engine_without_tls_at_an_https_address(
    start: Any, kit: Any, engine_certificate: PortCertificate
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As uvicorn answers what is no HTTP."""
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received.")
        writer.close()

    running = await start(
        engines=1, tls=engine_certificate.server(), engineTls=trusting(engine_certificate),
        timeouts={"probeInterval": 600},
    )  # fmt: skip
    [engine] = running.engines
    await engine.stop()
    plain = await asyncio.start_server(refuse, "127.0.0.1", engine.port)
    answer = await running.post(kit.chat())
    plain.close()
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert "the TLS handshake failed" in answer.error["message"]


async def test_both_kinds_of_engines_serve_during_a_rollout(
    start: Any, kit: Any, engine_certificate: PortCertificate
) -> None:
    running = await start(engines=1, engineTls=trusting(engine_certificate))
    renewed = kit.Engine("chat-1", engine_certificate.server())
    await renewed.start()
    running.engines.append(renewed)
    running.write_members()
    await kit.until(lambda: len(running.router.pool.fleet) == 2)
    for _ in range(4):
        assert (await running.post(kit.chat())).status == 200
    assert [len(engine.seen) for engine in running.engines] == [2, 2]


async def test_router_without_settings_verifies_nothing(
    start: Any, kit: Any, engine_certificate: PortCertificate
) -> None:
    """Its pool's manifest says plain HTTP: it had TLS until now, and a rollout removes it."""
    running = await start(engines=1, tls=engine_certificate.server(), timeouts=QUICK)
    await asyncio.sleep(0.3)
    assert (await running.post(kit.chat())).status == 200


async def test_new_files_get_new_connections(start: Any, kit: Any, engine_certificate: PortCertificate) -> None:
    """A stream goes on over its connection. No further request gets a connection with the previous authority."""
    running = await start(engines=1, tls=engine_certificate.server(), engineTls=trusting(engine_certificate))
    [engine], pool = running.engines, running.router.pool
    [replica] = pool.fleet
    go = asyncio.Event()

    async def in_two_parts(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("before ")))
        await go.wait()
        writer.write(kit.chunked(kit.token("after")) + kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    reader, writer = await running.connect()
    engine.answer = in_two_parts
    writer.write(kit.request(kit.chat(stream=True)))
    async with asyncio.timeout(30):
        await reader.readuntil(b"before ")
    engine.answer = engine.normally
    assert (await running.post(kit.chat())).status == 200
    [idle] = replica.connections._idle
    before = idle.context
    engine_certificate.change_authority()
    engine.tls.load_cert_chain(engine_certificate.folder / "tls.crt", engine_certificate.folder / "tls.key")
    pool.engines.refresh()
    assert pool.engines.tls.context is not before
    assert (await running.post(kit.chat())).status == 200
    assert idle.transport.is_closing()
    go.set()
    async with asyncio.timeout(30):
        assert b"after" in await reader.readuntil(b"0\r\n\r\n")
    await kit.until(lambda: len(replica.connections._all) == 1)
    assert [one.context for one in replica.connections._all] == [pool.engines.tls.context]


async def test_unusable_files_change_nothing(
    start: Any,
    kit: Any,
    engine_certificate: PortCertificate,
    client_certificate: PortCertificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = trusting(engine_certificate, client_certificate)
    running = await start(engines=1, tls=engine_certificate.server(client_certificate), engineTls=settings)
    pool, context = running.router.pool, running.router.pool.engines.tls.context
    (chain, _), (_, other_key) = client_certificate.issue(), client_certificate.issue()
    client_certificate.put(chain, other_key)
    pool.engines.refresh()
    assert (pool.engines.tls.context, pool.engines.tls.failures) == (context, 1)
    engine_certificate.put(*engine_certificate.issue(), authority=b"no certificate\n")
    pool.engines.refresh()
    assert (pool.engines.tls.context, pool.engines.tls.failures) == (context, 2)
    assert "stay in force" in status(running)["keysError"]
    assert await running.metric("plumage_router_engine_tls_reload_failures_total") == 2
    assert await running.metric("plumage_router_keys_stale") == 1
    assert "PRIVATE" not in caplog.text
    assert (await running.post(kit.chat())).status == 200
    client_certificate.renew()
    engine_certificate.renew()
    pool.engines.refresh()
    assert pool.engines.error is None
    assert (await running.post(kit.chat())).status == 200


async def test_engine_asks_for_a_certificate(
    start: Any, kit: Any, engine_certificate: PortCertificate, client_certificate: PortCertificate
) -> None:
    tls = engine_certificate.server(client_certificate)
    running = await start(
        engines=2, tls=tls, engineTls=trusting(engine_certificate, client_certificate), timeouts=QUICK
    )
    await asyncio.sleep(0.3)
    assert all(replica.healthy for replica in running.router.pool.fleet)
    for _ in range(4):
        assert (await running.post(kit.chat())).status == 200
    expires = await running.metric("plumage_router_client_certificate_expiry_timestamp_seconds")
    assert expires == pytest.approx(running.router.pool.engines.tls.expires, abs=1)


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
@pytest.mark.parametrize("size", [10, 2_000_000])
async def test_engine_refuses_a_router(
    start: Any,
    kit: Any,
    tmp_path: Path,
    engine_certificate: PortCertificate,
    client_certificate: PortCertificate,
    kind: str,
    size: int,
) -> None:
    """In TLS 1.3 the engine says so after the router has sent the request, which it did not read."""
    shown = {
        "none": lambda: None,
        "foreign": lambda: PortCertificate(tmp_path / "foreign", ["routers"]),
        "expired": lambda: client_certificate,
    }[kind]()
    if kind == "expired":
        client_certificate.renew(days=-0.5)
    running = await start(
        engines=2, tls=engine_certificate.server(client_certificate), engineTls=trusting(engine_certificate, shown),
        timeouts={"probeInterval": 600}, model={"maxLength": 10_000_000},
    )  # fmt: skip
    pool = running.router.pool
    for _ in range(3):
        answer = await running.post(kit.chat("word " * (size // 5)))
        assert answer.status in (502, 503)
    answer = await running.post(kit.chat("other " * (size // 5)))
    assert answer.error["code"] in ("upstream_failed", "no_replica"), "the request is not to blame"
    assert pool.metrics.retries["client_certificate_refused"] >= 1
    assert [replica.breaker.state for replica in pool.fleet] == [BreakerState.OPEN] * 2
    assert not pool.quarantine.cases
    assert [engine.seen for engine in running.engines] == [[], []]


async def test_refusal_is_shown_and_ends_with_a_certificate(
    start: Any, kit: Any, tmp_path: Path, engine_certificate: PortCertificate, client_certificate: PortCertificate
) -> None:
    own = PortCertificate(tmp_path / "own", ["routers"])
    running = await start(
        engines=1, tls=engine_certificate.server(client_certificate), engineTls=trusting(engine_certificate, own),
        timeouts=QUICK,
    )  # fmt: skip
    pool = running.router.pool
    [replica] = pool.fleet
    await kit.until(lambda: not replica.healthy)
    answer = await running.post(kit.chat())
    assert "does not accept this router's certificate" in answer.error["message"]
    assert "spec.engine.tls.clientSecretName" in answer.error["message"]
    own.put(*client_certificate.issue())
    pool.engines.refresh()
    await kit.until(lambda: replica.healthy and replica.reason(pool.tick) is None)
    assert (await running.post(kit.chat())).status == 200


async def test_engine_that_dies_of_a_request_is_no_refusal(
    start: Any, kit: Any, engine_certificate: PortCertificate, client_certificate: PortCertificate
) -> None:
    """It accepted the certificate before."""
    running = await start(
        engines=2, tls=engine_certificate.server(client_certificate), timeouts={"probeInterval": 600},
        engineTls=trusting(engine_certificate, client_certificate),
    )  # fmt: skip

    async def dies(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    for engine in running.engines:
        engine.answer = dies
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (502, "engines_failed")


async def test_gateway_without_a_pools_secret_serves_the_others(
    kit: Any, tmp_path: Path, engine_certificate: PortCertificate
) -> None:
    engine = kit.Engine("one-0", engine_certificate.server())
    await engine.start()
    members = tmp_path / "members.json"
    replica = {"id": "one-0", "url": f"https://127.0.0.1:{engine.port}", "agent": None, "state": "Ready"}

    def pool(name: str, folder: Path) -> dict[str, Any]:
        (file := members.with_name(f"{name}.json")).write_text(json.dumps({"pool": name, "replicas": [replica]}))
        return {
            "pool": name, "names": [name], "model": {"name": name, "modelFolder": "builtin://tiny-chat"},
            "membershipFile": str(file), "engineTls": {"caFile": str(folder / "ca.crt"), "serverName": NAME},
        }  # fmt: skip

    pools = [pool("one", engine_certificate.folder), pool("two", tmp_path / "missing")]
    server = MultiPoolServer(
        MultiPoolConfig.model_validate({"gateway": "front", "listen": {"port": 0}, "pools": pools})
    )
    await server.start()
    try:
        url = f"http://{server.addresses[0]}"
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            answers = [
                (await client.post("/v1/chat/completions", json={**kit.chat(), "model": name})).status_code
                for name in ("one", "two")
            ]
        assert answers == [200, 503]
        assert "ca.crt" in server.dispatcher.broken["two"]
    finally:
        await server.stop(drain_seconds=0)
        await engine.stop()


@asynccontextmanager
async def simulators(folder: Path, number: int, tls: dict[str, str]) -> AsyncIterator[list[int]]:
    """Real simulated engines with TLS, as processes. Their ports, once they accept connections."""
    ports, processes = [free_port() for _ in range(number)], []
    for port in ports:
        config = {
            "model": "tiny", "modelFolder": "builtin://tiny-chat", "port": port, "tls": tls,
            "device": {"preset": "gpu", "timeScale": 0.02},
        }  # fmt: skip
        file = folder / f"simulator-{port}.json"
        file.write_text(json.dumps(config))
        with (folder / f"simulator-{port}.log").open("wb") as output:
            processes.append(forks.start("plumage_engine.simulator", f"--config={file}", output=output))
    try:
        for port in ports:
            async with asyncio.timeout(60):
                while not await _accepts(port):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait(60)


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def test_renewals_lose_no_request(
    kit: Any,
    tmp_path: Path,
    engine_certificate: PortCertificate,
    client_certificate: PortCertificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both sides get new certificates three times while clients send, as from a kubelet."""
    caplog.set_level(logging.INFO)
    tls = {**engine_certificate.settings, "clientCaFile": str(client_certificate.authority_file)}
    async with simulators(tmp_path, 2, tls) as ports:
        members = tmp_path / "members.json"
        replicas = [
            {"id": f"chat-{port}", "url": f"https://127.0.0.1:{port}", "agent": None, "state": "Ready"}
            for port in ports
        ]
        members.write_text(json.dumps({"pool": "chat", "replicas": replicas}))
        settings = {
            "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"}, "seed": 1,
            "membershipFile": str(members), "listen": {"port": 0}, "policy": {"name": "RoundRobin"},
            "engineTls": trusting(engine_certificate, client_certificate),
        }  # fmt: skip
        router = RouterServer(RouterConfig.model_validate(settings))
        await router.start()
        statuses: list[int] = []
        done = asyncio.Event()

        async def send(number: int) -> None:
            url = f"http://{router.addresses[0]}"
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                while not done.is_set():
                    body = kit.chat(f"{number}", stream=number % 2 == 0, max_tokens=20)
                    statuses.append((await client.post("/v1/chat/completions", json=body)).status_code)

        try:
            async with asyncio.TaskGroup() as clients:
                for number in range(4):
                    clients.create_task(send(number))
                logs = [tmp_path / f"simulator-{port}.log" for port in ports]
                for times in range(1, 4):
                    engine_certificate.renew()
                    client_certificate.renew()
                    await kit.until(lambda times=times: _reloads(caplog, "client") == times)
                    await kit.until(lambda times=times: all(log.read_text().count("reloaded") == times for log in logs))
                    begun = len(statuses)
                    await kit.until(lambda begun=begun: len(statuses) > begun + 20)
                done.set()
            assert set(statuses) == {200}
            assert len(statuses) > 60
            assert sum(router.pool.metrics.retries.values()) == 0
            assert router.pool.engines.error is None
        finally:
            await router.stop(drain_seconds=0)


def _reloads(caplog: pytest.LogCaptureFixture, folder: str) -> int:
    return sum("reloaded" in record.getMessage() and f"/{folder}/" in record.getMessage() for record in caplog.records)
