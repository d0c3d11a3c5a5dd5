"""A router process with a real API server: its members, and access to its report."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support import forks
from support.needs import missing
from support.ports import free_port

from plumage.fleet_report import FLEET_PATH, RouterReport, read_router_report

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

pytestmark = pytest.mark.timeout(400)  # a busy machine's API server takes a minute to begin

OPERATOR, STRANGER, ROUTER = "plumage-operator", "stranger", "chat-router"
DISCOVERY, RBAC = "/apis/discovery.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1"


class Namespace:
    """A namespace of its own, as an administrator sees it, with the service accounts of a pool."""

    def __init__(self, server: ApiServer) -> None:
        trusted = ssl.create_default_context(cafile=str(server.ca_file))
        headers = {"Authorization": f"Bearer {server.token}"}
        self.name = f"router-{uuid.uuid4().hex[:8]}"
        self.http = httpx.Client(base_url=server.url, verify=trusted, headers=headers, timeout=30, trust_env=False)
        self.make("/api/v1/namespaces", {"metadata": {"name": self.name}})
        for account in (OPERATOR, STRANGER, ROUTER):
            self.make(f"{self.core}/serviceaccounts", {"metadata": {"name": account}})
        rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        self.make(f"{RBAC}/namespaces/{self.name}/roles", {"metadata": {"name": ROUTER}, "rules": [rule]})

    @property
    def core(self) -> str:
        return f"/api/v1/namespaces/{self.name}"

    @property
    def slices(self) -> str:
        return f"{DISCOVERY}/namespaces/{self.name}/endpointslices"

    def make(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def bind(self) -> None:
        subjects = [{"kind": "ServiceAccount", "name": ROUTER, "namespace": self.name}]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROUTER}
        body = {"metadata": {"name": ROUTER}, "roleRef": role, "subjects": subjects}
        self.make(f"{RBAC}/namespaces/{self.name}/rolebindings", body)

    def token(self, account: str, *audiences: str, seconds: int = 3600) -> str:
        spec = {"audiences": list(audiences), "expirationSeconds": seconds}
        return str(self.make(f"{self.core}/serviceaccounts/{account}/token", {"spec": spec})["status"]["token"])

    def put_slice(self, name: str, port: int, *endpoints: dict[str, Any]) -> None:
        """Makes it or replaces it."""
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "chat-engine"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port}, {"name": "agent", "port": 8081}],
            "endpoints": list(endpoints),
        }
        if self.http.put(f"{self.slices}/{name}", json=body).status_code == 404:
            self.make(self.slices, body)


def endpoint(pod: str, address: str, **conditions: bool) -> dict[str, Any]:
    target = {"kind": "Pod", "name": pod}
    return {"addresses": [address], "conditions": {"ready": True, **conditions}, "targetRef": target}


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[Namespace]:
    namespace = Namespace(api_server)
    yield namespace
    namespace.http.close()  # the namespace goes with the session's API server


class Process:
    """A router process in front of the namespace's pool."""

    def __init__(self, namespace: Namespace, server: ApiServer, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        (folder / "token").write_text(namespace.token(ROUTER))
        account = f"system:serviceaccount:{namespace.name}:{OPERATOR}"
        slices = {"namespace": namespace.name, "service": "chat-engine", "cordonedFile": str(folder / "cordoned.json")}
        self.config = {
            "listen": {"port": self.port},
            "pool": "chat",
            "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
            "membership": {"endpointSlices": slices},
            "apiServer": {"url": server.url, "tokenFile": str(folder / "token"), "caFile": str(server.ca_file)},
            "auth": {"callers": [account]},
            "policy": {"name": "RoundRobin"},
            "hold": {"maxRequests": 10, "maxSeconds": 60},
        }
        (folder / "router.json").write_text(json.dumps(self.config))
        self.operator = namespace.token(OPERATOR, "plumage")
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)
        self._process: forks.Fork | subprocess.Popen[bytes] | None = None

    async def start(self, ahead: float = 0.0) -> None:
        """ahead: seconds by which its machine's clock is."""
        command = ["plumage_router", f"--config={self.folder / 'router.json'}"]
        environment = {**os.environ, "POD_NAME": "chat-router-7f"}
        if ahead:  # its clock must be wrong before it imports anything
            path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
            shifted = [sys.executable, "-m", "support.shifted_clock", str(ahead), *command]
            self._process = await asyncio.to_thread(subprocess.Popen, shifted, env={**environment, "PYTHONPATH": path})
        else:
            self._process = forks.start(*command, environment=environment)
        await until(lambda: self.answers("/healthz"))

    async def stop(self) -> None:
        await self.http.aclose()
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    async def answers(self, path: str) -> bool:
        try:
            return (await self.http.get(path)).status_code == 200
        except httpx.HTTPError:
            return False

    async def ask(self, token: str | None) -> httpx.Response:
        return await self.http.get(FLEET_PATH, headers={"Authorization": f"Bearer {token}"} if token else {})

    async def report(self) -> RouterReport:
        answer = await self.ask(self.operator)
        assert answer.status_code == 200, answer.text
        return read_router_report(answer.content)

    async def states(self) -> dict[str, str]:
        return {replica.id: replica.state for replica in (await self.report()).replicas}


@pytest.fixture
async def process(namespace: Namespace, api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Process]:
    process = await asyncio.to_thread(Process, namespace, api_server, tmp_path)
    await process.start()
    yield process
    await process.stop()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(90):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def outward_address() -> str:
    """Of this machine and no loopback one, which slices may not hold."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        missing("an address that is no loopback one, since EndpointSlices may not hold those", "give an interface one")
    return address


async def test_members_stay_while_api_server_is_away(
    process: Process, namespace: Namespace, api_server: ApiServer, kit: Any
) -> None:
    report = await process.report()
    assert (report.router, report.listed) == ("chat-router-7f", False)
    assert not await process.answers("/health"), "it must not be sent clients before it knows who is there"
    await until(lambda: _error_says(process, "endpointslices"))
    await asyncio.to_thread(namespace.bind)
    await until(lambda: process.answers("/health"))
    assert (await process.report()).membership_error is None

    address = outward_address()
    engine = kit.Engine("a")
    server = await asyncio.start_server(engine._serve, address, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        asking = asyncio.create_task(process.http.post("/v1/chat/completions", json=kit.chat()))
        await until(lambda: _held(process, 1))
        both = [endpoint("a", address, serving=False), endpoint("b", "192.0.2.9", serving=True, terminating=True)]
        await asyncio.to_thread(namespace.put_slice, "chat-engine-1", port, *both)
        await asyncio.to_thread(namespace.put_slice, "chat-engine-2", port, endpoint("c", "192.0.2.10", serving=False))
        await until(lambda: _is(process, {"a": "Warming", "b": "Draining", "c": "Warming"}))
        await asyncio.to_thread(namespace.put_slice, "chat-engine-1", port, endpoint("a", address, serving=True))
        assert (await asking).status_code == 200
        await until(lambda: _is(process, {"a": "Ready", "c": "Warming"}))

        api_server.processes.stop("apiserver")
        try:
            await until(lambda: _error_says(process, "can't be reached"))
            await until(lambda: _is(process, {"a": "Ready", "c": "Warming"}))
            assert (await process.http.post("/v1/chat/completions", json=kit.chat())).status_code == 200
            assert "plumage_router_membership_stale 1" in (await process.http.get("/metrics")).text
        finally:
            api_server.start("apiserver")  # not in a thread: it would end with that
        await asyncio.to_thread(namespace.http.delete, f"{namespace.slices}/chat-engine-2")
        await until(lambda: _is(process, {"a": "Ready"}))
        assert (await process.report()).membership_error is None

        fresh = process.folder / "cordoned.new"
        fresh.write_text('{"cordoned": ["a"]}')
        fresh.rename(process.folder / "cordoned.json")
        await until(lambda: _is(process, {"a": "Cordoned"}))
    finally:
        server.close()
        await engine.stop()


async def test_fleet_report_is_for_operator_only(process: Process, namespace: Namespace) -> None:
    for token, status, reason in (
        (None, 401, "token is needed"),
        ("nonsense", 401, "no service account's token"),
        (namespace.token(OPERATOR), 401, "audience 'plumage'"),
        (namespace.token(STRANGER, "plumage"), 403, f"{namespace.name}:{STRANGER} may not call this route"),
        (namespace.token(OPERATOR, "plumage"), 200, ""),
    ):
        answer = await process.ask(token)
        assert answer.status_code == status, answer.text
        assert reason in answer.text
        assert token is None or token not in answer.text
    for path in ("/plumage/v1/status", "/plumage/v1/hottest"):
        headers = {"Authorization": f"Bearer {process.operator}"}
        assert (await process.http.get(path, headers=headers)).status_code == 401, "those need the admin key"


@pytest.mark.parametrize(("ahead", "reason"), [(3600.0, "the token expired"), (-3600.0, "the token counts in")])
async def test_wrong_clock_costs_report_but_no_request(
    ahead: float, reason: str, namespace: Namespace, api_server: ApiServer, kit: Any, tmp_path: Path
) -> None:
    await asyncio.to_thread(namespace.bind)
    process = await asyncio.to_thread(Process, namespace, api_server, tmp_path)
    address, engine = outward_address(), kit.Engine("a")
    server = await asyncio.start_server(engine._serve, address, 0)
    try:
        await process.start(ahead)
        port = server.sockets[0].getsockname()[1]
        await asyncio.to_thread(namespace.put_slice, "chat-engine-1", port, endpoint("a", address, serving=True))
        await until(lambda: process.answers("/health"))
        assert (await process.http.post("/v1/chat/completions", json=kit.chat())).status_code == 200
        refused = await process.ask(await asyncio.to_thread(namespace.token, OPERATOR, "plumage", seconds=600))
        assert refused.status_code == 401
        assert reason in refused.text
        assert "clock" in refused.text
    finally:
        server.close()
        await engine.stop()
        await process.stop()


async def _error_says(process: Process, words: str) -> bool:
    return words in ((await process.report()).membership_error or "")


async def _held(process: Process, number: int) -> bool:
    return (await process.report()).waiting == number


async def _is(process: Process, states: dict[str, str]) -> bool:
    return await process.states() == states
