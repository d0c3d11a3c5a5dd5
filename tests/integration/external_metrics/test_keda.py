"""KEDA's own operator scales a pool whose manifest names no replicas, by the document of Plumage's operator.

The cluster does not include its program, which takes half an hour to build on two cores. PLUMAGE_KEDA names it:

    cd "$(go mod download -json github.com/kedacore/keda/v2@v2.21.0 | jq -r .Dir)"
    go build -o /tmp/keda ./cmd/operator
    PLUMAGE_KEDA=/tmp/keda make test ARGS=tests/integration/external_metrics/test_keda.py
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from cluster.certificates import Authority
from cluster.kinds import SCALED_OBJECTS, definition
from support.autoscaling import KNEE, pool
from support.kube import served
from support.ports import free_ports

from plumage.autoscaling import CacheJudge, PoolLoad
from plumage_operator.external_metrics import PoolSample, add_pool_page

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

PROGRAM = os.environ.get("PLUMAGE_KEDA")
REPO = Path(__file__).parents[3]
NAMESPACE, POOL = "default", "chat"
KINDS = (
    "keda.sh_scaledobjects", "keda.sh_scaledjobs", "keda.sh_triggerauthentications",
    "keda.sh_clustertriggerauthentications", "eventing.keda.sh_cloudeventsources",
    "eventing.keda.sh_clustercloudeventsources",
)  # fmt: skip
pytestmark = [
    pytest.mark.api_server,  # of its own
    pytest.mark.skipif(not PROGRAM, reason="needs KEDA's operator: build it, and name it by PLUMAGE_KEDA"),
]


class Figures:
    """The load of the pool, as Plumage's operator reports it. waiting: requests without a replica."""

    waiting = 0
    running = 0

    def samples(self) -> list[PoolSample]:
        load: PoolLoad = pool(
            [float(self.running)], arrivals=self.running, in_flight=self.running, waiting=self.waiting
        )
        judge = CacheJudge(KNEE, 0.4, 1, 1000.0)
        return [PoolSample(NAMESPACE, POOL, load, judge)]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server with Plumage's kinds and KEDA's."""
    with served() as own:
        own.kubectl("apply", "--server-side", "-f", str(REPO / "crds"))
        for kind in KINDS:
            path = definition(replace(SCALED_OBJECTS, file=f"config/crd/bases/{kind}.yaml"))
            own.kubectl("apply", "--server-side", "-f", str(path))
        own.established()
        yield own


@pytest.fixture
def keda(server: ApiServer, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """KEDA's operator as a process."""
    authority = Authority.create("keda")
    authority.write(tmp_path, "ca")
    authority.issue(tmp_path, "tls", "keda-operator", ["keda-operator"])
    health, service = free_ports(2)
    server.kubectl("create", "namespace", "keda")
    variables = {"POD_NAMESPACE": "keda", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda", "WATCH_NAMESPACE": ""}
    command = [
        str(PROGRAM),
        f"--kubeconfig={server.kubeconfig}",
        f"--cert-dir={tmp_path}",
        "--enable-prometheus-metrics=false",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--metrics-service-bind-address=127.0.0.1:{service}",
    ]
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "keda.log").open("wb"))
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
        stack.callback(process.wait, 30)
        stack.callback(process.kill)
        yield process


@pytest.fixture
async def figures() -> AsyncIterator[tuple[Figures, str]]:
    """The figures, and the address at which they are served."""
    found, app = Figures(), web.Application()
    add_pool_page(app, found.samples, clock=lambda: 0.0)
    async with TestServer(app) as running:
        yield found, str(running.make_url(f"/v1/plumage/pools/{NAMESPACE}/{POOL}"))


def scaled_object(url: str) -> dict[str, Any]:
    """The sample with shorter intervals, and with its triggers at the test's figures."""
    found: dict[str, Any] = yaml.safe_load((REPO / "examples" / "autoscaling" / "keda.yaml").read_text())
    found["spec"] |= {"pollingInterval": 1, "cooldownPeriod": 3}
    for trigger in found["spec"]["triggers"]:
        trigger["metadata"]["url"] = url
    return found


async def until(holds: Callable[[], Awaitable[Any]], what: str, log: Path) -> None:
    end = time.monotonic() + 120.0
    while not await holds():
        said = await asyncio.to_thread(log.read_text)
        assert time.monotonic() < end, f"{what}; KEDA said:\n{said[-3000:]}"
        await asyncio.sleep(0.5)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("keda")
async def test_keda_scales_pool_to_zero_and_back(
    server: ApiServer, figures: tuple[Figures, str], tmp_path: Path
) -> None:
    load, url = figures
    log = tmp_path / "keda.log"

    async def get(kind: str, path: str, name: str = POOL) -> str:
        words = ("-n", NAMESPACE, "get", kind, name, "-o", f"jsonpath={path}")
        done = await asyncio.to_thread(server.kubectl, *words, check=False)
        return str(done.stdout)

    async def has(replicas: int) -> bool:
        return await get("ppool", "{.spec.replicas}") == str(replicas)

    async def ready() -> bool:
        return await get("scaledobject", "{.status.conditions[?(@.type=='Ready')].status}") == "True"

    async def of_the_pool() -> bool:
        target = "{.spec.scaleTargetRef.kind}/{.spec.scaleTargetRef.name}"
        return await get("hpa", target, f"keda-hpa-{POOL}") == f"InferencePool/{POOL}"

    manifest = (REPO / "examples" / "minimal.yaml").read_text()
    assert "replicas" not in yaml.safe_load(manifest)["spec"]
    server.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=manifest)
    load.running = 3
    server.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(scaled_object(url)))
    await until(ready, "KEDA takes the pool as a target", log)
    await until(of_the_pool, "it makes an HPA of the pool", log)
    load.running = 0
    await until(lambda: has(0), "without a request the pool sleeps", log)
    load.waiting = 1
    await until(lambda: has(1), "a request that waits wakes it", log)
