"""Two certificates are renewed while the operator serves: the one that it shows to the API server, and the CA by which
it verifies the API server."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cluster.certificates import FRONT_PROXY, Authority
from cryptography import x509
from support.ports import free_port

from plumage_operator.external_metrics import ExternalMetricsServer
from plumage_operator.external_metrics.tls import FrontProxy
from plumage_operator.observability.metrics import Metrics

GROUP = "external.metrics.k8s.io"
EXPIRED = -datetime.timedelta(hours=1)
MONTH = datetime.timedelta(days=30)
GAUGE = "plumage_operator_external_metrics_certificate_expiry_timestamp_seconds"


class Cluster:
    """The API server's own certificates, and the operator's view of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        self.port = free_port()
        self.metrics = Metrics()
        self.looks = 0
        self.serve("first")
        self.ask_as("first")

    def serve(self, name: str, lasts: datetime.timedelta = MONTH) -> None:
        """A Secret with another certificate. lasts: negative for an expired one."""
        self.serving = Authority.create(name)
        self.serving.write(self.folder, "serving")
        self.serving.issue(self.mounted, "tls", "plumage-operator", ["localhost"], lasts)

    def ask_as(self, name: str) -> None:
        """Another CA signs the certificate of the API server."""
        self.proxy = Authority.create(name)
        self.proxy.write(self.folder, "proxy")
        self.proxy.issue(self.folder, "client", FRONT_PROXY)

    def ends(self, at: float | None) -> None:
        self.metrics.certificate_expires = at

    async def front_proxy(self) -> FrontProxy:
        self.looks += 1
        return FrontProxy((self.folder / "proxy.crt").read_text(), frozenset({FRONT_PROXY}))

    def context(self) -> ssl.SSLContext:
        """The TLS context of the API server's requests now."""
        context = ssl.create_default_context(cafile=str(self.folder / "serving.crt"))
        context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        return context

    async def ask(self, context: ssl.SSLContext) -> str:
        """The API's name, or the reason for the missing answer."""
        url = f"https://localhost:{self.port}/apis/{GROUP}/v1beta1"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
                return str((await answer.json()).get("groupVersion"))
        except (aiohttp.ClientError, OSError) as error:
            return repr(error)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    metrics = ExternalMetricsServer(
        list, cluster.front_proxy, cluster.mounted, host="127.0.0.1", port=cluster.port, expires=cluster.ends
    )
    running = asyncio.create_task(metrics.run(0.05))
    yield cluster
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0.2)  # connections whose handshake was refused close in later turns of the loop


async def until_answered(cluster: Cluster) -> None:
    async with asyncio.timeout(60):
        while (said := await cluster.ask(cluster.context())) != f"{GROUP}/v1beta1":
            assert "KeyError" not in said
            await asyncio.sleep(0.05)


async def test_renewed_serving_certificate_is_used(cluster: Cluster) -> None:
    await until_answered(cluster)
    before = cluster.context()
    cluster.serve("second")
    await until_answered(cluster)
    assert "CERTIFICATE_VERIFY_FAILED" in await cluster.ask(before), "the old one is shown no more"


async def test_expired_certificate_is_named_until_renewed(cluster: Cluster) -> None:
    await until_answered(cluster)
    cluster.serve("second", EXPIRED)
    async with asyncio.timeout(60):
        while "certificate has expired" not in (said := await cluster.ask(cluster.context())):
            assert said != f"{GROUP}/v1beta1", "nobody who checks takes it"
            await asyncio.sleep(0.05)
    cluster.serve("third")
    await until_answered(cluster)


async def test_expiry_is_logged_twice_and_has_a_metric(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plumage_operator")
    await until_answered(cluster)
    for lasts, level, said in (
        (datetime.timedelta(days=20), logging.INFO, "the certificate is valid until"),
        (datetime.timedelta(days=6), logging.WARNING, "the certificate expires soon, at"),
        (EXPIRED, logging.ERROR, "the certificate has expired, at"),
        (datetime.timedelta(days=8), logging.INFO, "the certificate is valid until"),
    ):
        caplog.clear()
        cluster.serve("another", lasts)
        until = x509.load_pem_x509_certificate((cluster.mounted / "tls.crt").read_bytes()).not_valid_after_utc
        async with asyncio.timeout(60):
            while cluster.metrics.certificate_expires != until.timestamp() or said not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            looks = cluster.looks
            while cluster.looks < looks + 4:  # noqa: ASYNC110 - they have no news
                await asyncio.sleep(0.05)
        records = [one for one in caplog.records if "the certificate " in one.message]
        assert [(one.levelno, said in one.message) for one in records] == [(level, True)]
        assert until.strftime("%Y-%m-%dT%H:%M:%SZ") in records[0].message
        page = cluster.metrics.page(pools=0, waiting=0, oldest=0)
        assert f"\n{GAUGE} {until.timestamp():.0f}\n" in page


async def test_incomplete_certificate_is_ignored(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await until_answered(cluster)
    (cluster.mounted / "tls.crt").write_text("no certificate")
    async with asyncio.timeout(60):
        while "no certificate to serve external metrics with" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await cluster.ask(cluster.context()) == f"{GROUP}/v1beta1"
    cluster.serve("second")
    await until_answered(cluster)


async def test_new_client_certificate_of_api_server_is_accepted(cluster: Cluster) -> None:
    await until_answered(cluster)
    before = cluster.context()
    cluster.ask_as("second")
    await until_answered(cluster)
    assert await cluster.ask(before) != f"{GROUP}/v1beta1", "who shows the old one is nobody"


async def test_no_connection_hangs_while_certificates_change(cluster: Cluster) -> None:
    await until_answered(cluster)
    answers = 0
    for _ in range(20):
        cluster.serve("another")
        looks = cluster.looks
        while cluster.looks < looks + 3:
            async with asyncio.timeout(10):  # a lost connection is never closed
                said = await asyncio.gather(*(cluster.ask(cluster.context()) for _ in range(10)))
            answers += said.count(f"{GROUP}/v1beta1")
    assert answers > 0
