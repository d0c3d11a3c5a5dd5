"""The API server's certificate expires, and its CA is renewed: the operator reports it and continues. The operator's
own certificate for external metrics expires too.

This file has its own cluster, since it changes a CA that all clients trust.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster.api_only import ApiServer, api_server
from cluster.certificates import Authority
from cluster.errors import NotHereError
from cryptography import x509
from support.needs import missing
from support.operator_fleet import SYSTEM, Fleet, children, made, pool
from support.ports import free_port

from plumage.api_server import ApiServerError
from plumage.incluster.api import ApiServer as PodsApiServer
from plumage.incluster.config import ApiServerConfig

EXPIRED = -datetime.timedelta(hours=1)
MONTH = datetime.timedelta(days=30)
READS_FRONT_PROXY = {  # the address in the chart
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "plumage-operator-requestheader", "namespace": "kube-system"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "extension-apiserver-authentication-reader",
    },
    "subjects": [{"kind": "ServiceAccount", "name": "plumage-operator", "namespace": SYSTEM}],
}


class Renewed:
    """An API server whose certificate this test signs."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.folder = server.ca_file.parent
        self.authority = Authority.read(self.folder, "ca")

    def trust(self, *authorities: Authority) -> None:
        """Replaces the file of CAs that pods trust, as a kubelet does."""
        for number, authority in enumerate(authorities):
            authority.write(self.folder, f"trusted-{number}")
        parts = [(self.folder / f"trusted-{number}.crt").read_bytes() for number in range(len(authorities))]
        fresh = self.folder / "fresh.crt"
        fresh.write_bytes(b"".join(parts))
        fresh.rename(self.server.ca_file)

    def serve(self, authority: Authority, lasts: datetime.timedelta = MONTH) -> None:
        """Starts the API server with a certificate of that CA. With an expired certificate it does not wait."""
        authority.issue(self.folder, "apiserver", "kube-apiserver", ["127.0.0.1", "localhost"], lasts)
        for name in ("controllers", "apiserver"):
            self.server.processes.stop(name, signal.SIGKILL)
        if lasts < datetime.timedelta():
            self.server.processes.start("apiserver", self.server.plane.api_server())
            self.server.processes.start("controllers", ["sleep", "600"])
        else:
            self.server.start("apiserver")
            self.server.start("controllers")


@pytest.fixture
def renewed() -> Iterator[Renewed]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(api_server())
        except NotHereError as error:
            missing("an API server's programs", str(error))
        yield Renewed(server)


@pytest.fixture
def fleet(renewed: Renewed, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(renewed.server, tmp_path)
    fleet.install()
    fleet.start()
    yield fleet
    for name in list(fleet.operators):
        fleet.stop(name, kill=True)


def repaired(fleet: Fleet, service: str) -> bool:
    fleet.keep_up()
    return ("Service", service) in children(fleet, "default")


@pytest.mark.timeout(600)
def test_expired_certificate_is_named_and_renewed_one_trusted(fleet: Fleet, renewed: Renewed) -> None:
    fleet.kubectl("apply", "-f", "-", stdin=pool("  replicas: 2"))
    made(fleet, "default")
    reader = fleet.kubectl("-n", SYSTEM, "create", "token", "plumage-operator", "--duration=1h").strip()
    (fleet.folder / "token").write_text(reader)
    config = ApiServerConfig(url=renewed.server.url, token_file=fleet.folder / "token", ca_file=renewed.server.ca_file)
    pods = PodsApiServer(config)

    renewed.serve(renewed.authority, EXPIRED)
    fleet.until(lambda: "certificate has expired" in asked(pods))
    fleet.until(lambda: "certificate has expired" in fleet.log())
    fleet.until(lambda: _waits(fleet))
    renewed.serve(renewed.authority)
    fleet.kubectl("delete", "service", "chat-router")
    fleet.until(lambda: repaired(fleet, "chat-router"))
    assert "major" in asked(pods)

    other = Authority.create("other")
    renewed.trust(renewed.authority, other)
    fleet.until(lambda: "contains another certificate authority than at the start" in fleet.log())
    fleet.kubectl("delete", "service", "chat-engine")
    fleet.until(lambda: repaired(fleet, "chat-engine"))
    renewed.serve(other)
    fleet.kubectl("delete", "service", "chat-directory")
    fleet.until(lambda: repaired(fleet, "chat-directory"))
    assert "unable to get local issuer" not in fleet.log(), "the new authority was trusted before it was needed"
    assert "major" in asked(pods)


def test_expired_certificate_of_external_metrics_is_logged_and_reported(fleet: Fleet, tmp_path: Path) -> None:
    fleet.stop()
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(READS_FRONT_PROXY))
    Authority.create("serving").issue(tmp_path, "tls", "plumage-operator", ["localhost"], EXPIRED)
    ends = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes()).not_valid_after_utc
    serving = {"PLUMAGE_EXTERNAL_METRICS_PORT": str(free_port()), "PLUMAGE_EXTERNAL_METRICS_TLS": str(tmp_path)}
    fleet.start(**serving)
    fleet.until(lambda: f"certificate has expired, at {ends:%Y-%m-%dT%H:%M:%SZ}" in fleet.log())
    gauge = "plumage_operator_external_metrics_certificate_expiry_timestamp_seconds"
    assert f"\n{gauge} {ends.timestamp():.0f}\n" in page(fleet)


def page(fleet: Fleet) -> str:
    """The operator's metrics."""
    _, port = fleet.ports["first"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def asked(pods: PodsApiServer) -> str:
    """The answer to a router or an agent."""
    return asyncio.run(_asked(pods))


async def _asked(pods: PodsApiServer) -> str:
    try:
        return str(await pods.get("/version"))
    except ApiServerError as error:
        return str(error)
    finally:
        await asyncio.sleep(0.25)  # aiohttp's TLS connections close after their session ("Graceful shutdown")


def _waits(fleet: Fleet) -> bool:
    """The operator without its Lease has ended, and the next one waits and reports the reason."""
    fleet.keep_up()
    return "can't reach the Lease" in fleet.log()
