"""A plain HorizontalPodAutoscaler of a real controller manager scales a pool by its cache and by its tokens, up and
down, through a real API server's aggregation layer."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.api_only import ApiServer
from cluster.certificates import Authority
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import load_kube_config
from support.autoscaling import KNEE
from support.ports import free_ports

from plumage.autoscaling import CacheJudge, PoolLoad, ReplicaLoad
from plumage_operator.external_metrics import ExternalMetricsServer, PoolSample, read_front_proxy
from plumage_operator.kube.client import KubeClient

REPO = Path(__file__).parents[3]
NAMESPACE, POOL = "hpa", "chat"
SERVICE = "plumage-operator"
HOST = f"{SERVICE}.{NAMESPACE}.svc"
EXAMPLE = REPO / "examples" / "autoscaling" / "hpa.yaml"


@dataclass
class Fleet:
    """The figures that the operator would have measured; the test changes them. asked: pools whose figures were
    requested."""

    measured: float = 0.4
    tokens: float = 1000.0
    replicas: int = 2
    seen: Callable[[], float] = field(default=time.time)
    requested: list[tuple[str, str]] = field(default_factory=list)

    def samples(self) -> list[PoolSample]:
        now = self.seen()
        replicas = tuple(
            ReplicaLoad(id=f"r{number}", seen=now, total_tokens_per_second=self.tokens)
            for number in range(self.replicas)
        )
        load = PoolLoad(wanted=self.replicas, replicas=replicas, seen=now)
        judge = CacheJudge(KNEE, self.measured, self.replicas, 1000.0)
        return [PoolSample(NAMESPACE, POOL, load, judge), PoolSample(NAMESPACE, "other", replace(load, replicas=()))]


async def kubectl(server: ApiServer, *args: str, stdin: Any = None, check: bool = True) -> str:
    text = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
    done = await asyncio.to_thread(server.kubectl, *args, stdin=text, check=check)
    return done.stdout if done.returncode == 0 else done.stderr


async def until(what: Callable[[], Any], within: float = 120.0) -> Any:
    """The first true result."""
    end = time.monotonic() + within
    while True:
        found = await what()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within} s"
        await asyncio.sleep(0.25)


@asynccontextmanager
async def served(server: ApiServer, fleet: Fleet, folder: Path) -> AsyncIterator[ExternalMetricsServer]:
    """The API, registered with the API server."""
    authority = Authority.create("external-metrics")
    authority.write(folder, "ca")
    authority.issue(folder, "tls", HOST, [HOST])
    (port,) = free_ports(1)
    configuration = Configuration()
    await load_kube_config(config_file=str(server.kubeconfig), client_configuration=configuration, persist_config=False)
    async with KubeClient(configuration) as api:
        metrics = ExternalMetricsServer(
            fleet.samples,
            lambda: read_front_proxy(api),
            folder,
            host="127.0.0.1",
            port=port,
            requested=fleet.requested.append,
        )
        running = asyncio.create_task(metrics.run(0.5))
        try:
            await kubectl(server, "create", "namespace", NAMESPACE, check=False)
            await kubectl(server, "apply", "-f", "-", stdin=registration(port, (folder / "ca.crt").read_bytes()))
            yield metrics
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kubectl(
                server, "-n", NAMESPACE, "delete", "hpa", "--all", check=False
            )  # an HPA requests metrics each second, also from the next test's server
            await kubectl(server, "delete", "apiservice", "v1beta1.external.metrics.k8s.io", check=False)


def registration(port: int, authority: bytes) -> dict[str, Any]:
    """An APIService whose Service leads to this machine."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": SERVICE, "namespace": NAMESPACE, "port": port},
            "caBundle": base64.b64encode(authority).decode(),
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, api]}


async def available(server: ApiServer) -> bool:
    path = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
    return await kubectl(server, "get", "apiservice", "v1beta1.external.metrics.k8s.io", "-o", path) == "True"


async def ask(server: ApiServer, metric: str, selector: str = "") -> dict[str, Any]:
    query = f"?labelSelector={selector}" if selector else ""
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/{metric}{query}"
    return json.loads(await kubectl(server, "get", "--raw", path))


def minimal_pool() -> dict[str, Any]:
    """The example without a number of replicas."""
    pool = dict(yaml.safe_load((REPO / "examples" / "minimal.yaml").read_text()))
    assert "replicas" not in pool["spec"]
    return {**pool, "metadata": {"name": POOL, "namespace": NAMESPACE}}


async def make_pool(server: ApiServer, replicas: int, pool: dict[str, Any]) -> None:
    """A pool with its status and ready pods, as the operator would leave it."""
    await kubectl(server, "apply", "-f", "-", stdin=pool)
    await write_status(server, replicas)
    await until(lambda: kubectl(server, "-n", NAMESPACE, "get", "serviceaccount/default", "-o", "name", check=False))
    for number in range(replicas):
        await make_ready_pod(server, f"chat-{number}")


async def write_status(server: ApiServer, replicas: int) -> None:
    status = {"status": {"replicas": replicas, "selector": f"inference.plumage.dev/pool={POOL}"}}
    await kubectl(server, "-n", NAMESPACE, "patch", "ppool", POOL, "--subresource=status", "--type=merge",
                  "-p", json.dumps(status))  # fmt: skip


async def make_ready_pod(server: ApiServer, name: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"inference.plumage.dev/pool": POOL}},
        "spec": {"containers": [{"name": "engine", "image": "none"}]},
    }
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await until(lambda: applied(server, pod))
    await kubectl(server, "-n", NAMESPACE, "patch", "pod", name, "--subresource=status", "--type=merge",
                  "-p", json.dumps(status))  # fmt: skip


async def applied(server: ApiServer, thing: dict[str, Any]) -> bool:
    """False while the namespace has no service account yet."""
    return "NotFound" not in await kubectl(server, "apply", "-f", "-", stdin=thing, check=False)


async def wanted(server: ApiServer) -> int:
    return int(await kubectl(server, "-n", NAMESPACE, "get", "ppool", POOL, "-o", "jsonpath={.spec.replicas}"))


def quick(metric: str, target: dict[str, Any]) -> dict[str, Any]:
    """The example with another metric and without windows."""
    hpa = next(yaml.safe_load_all(EXAMPLE.read_text()))
    hpa["metadata"] = {"name": "chat", "namespace": NAMESPACE}
    hpa["spec"]["scaleTargetRef"]["name"] = POOL
    hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"] = 1, 6
    [external] = [one for one in hpa["spec"]["metrics"] if one["external"]["metric"]["name"] == metric]
    external["external"]["metric"]["selector"] = {"matchLabels": {"pool": POOL}}
    external["external"]["target"] = target
    hpa["spec"]["metrics"] = [external]
    hpa["spec"]["behavior"] = {
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {"stabilizationWindowSeconds": 0},
    }
    return hpa


@pytest.mark.timeout(400)
async def test_hpa_scales_up_and_down_by_cache_and_tokens(api_server: ApiServer, kinds: object, tmp_path: Path) -> None:
    fleet = Fleet()
    async with served(api_server, fleet, tmp_path):
        await until(lambda: available(api_server))
        pool = minimal_pool()
        await make_pool(api_server, 2, {**pool, "spec": {**pool["spec"], "replicas": 2}})

        async def reaches(replicas: int) -> None:
            async def there() -> bool:
                return await wanted(api_server) == replicas

            await until(there)
            await write_status(api_server, replicas)

        # By the curve twice the cache adds 40 % hits. The target permits one miss in ten, which needs six replicas, the
        # bound.
        fleet.measured = 0.4
        hpa = quick("plumage_cache_miss_ratio_curable", {"type": "Value", "value": "100m"})
        await kubectl(api_server, "apply", "-f", "-", stdin=hpa)
        await reaches(6)
        # Where the curve is flat a larger cache does not help.
        fleet.replicas, fleet.measured = 8, 0.8
        assert (await ask(api_server, "plumage_cache_miss_ratio_curable"))["items"][0]["value"] == "0m"
        await reaches(1)
        # Tokens a second, of the pool, against a target for one replica.
        await kubectl(api_server, "-n", NAMESPACE, "delete", "hpa", "chat")
        fleet.replicas, fleet.tokens = 2, 2000.0
        hpa = quick("plumage_total_tokens_per_second", {"type": "AverageValue", "averageValue": "1000"})
        await kubectl(api_server, "apply", "-f", "-", stdin=hpa)
        await reaches(4)
        fleet.tokens = 500.0
        await reaches(1)
        # Stale figures are not served, so the size stays.
        fleet.seen = lambda: time.time() - 100
        fleet.tokens = 5000.0
        assert (await ask(api_server, "plumage_total_tokens_per_second"))["items"] == []
        await asyncio.sleep(3)
        assert await wanted(api_server) == 1


@pytest.mark.timeout(400)
async def test_hpa_scales_pool_without_replicas_in_manifest(
    api_server: ApiServer, kinds: object, tmp_path: Path
) -> None:
    fleet = Fleet(tokens=4000.0, replicas=1)
    async with served(api_server, fleet, tmp_path):
        await kubectl(api_server, "-n", NAMESPACE, "delete", "ppool", POOL, "--ignore-not-found")
        await until(lambda: available(api_server))
        await make_pool(api_server, 1, minimal_pool())
        hpa = quick("plumage_total_tokens_per_second", {"type": "AverageValue", "averageValue": "1000"})
        await kubectl(api_server, "apply", "-f", "-", stdin=hpa)

        async def has_four() -> bool:
            return await wanted(api_server) == 4

        await until(has_four)
        able = "jsonpath={.status.conditions[?(@.type=='AbleToScale')].status}"
        assert await kubectl(api_server, "-n", NAMESPACE, "get", "hpa", "chat", "-o", able) == "True"
        await kubectl(api_server, "apply", "-f", "-", stdin=minimal_pool())
        assert await wanted(api_server) == 4, "who applies the manifest again leaves the HPA's number"


@pytest.mark.timeout(400)
async def test_api_server_lists_and_selects_metrics(api_server: ApiServer, tmp_path: Path) -> None:
    fleet = Fleet()
    async with served(api_server, fleet, tmp_path):
        await until(lambda: available(api_server))
        listed = json.loads(await kubectl(api_server, "get", "--raw", "/apis/external.metrics.k8s.io/v1beta1"))
        assert "plumage_total_tokens_per_second" in {one["name"] for one in listed["resources"]}
        items = (await ask(api_server, "plumage_total_tokens_per_second", f"pool%3D{POOL}"))["items"]
        assert [one["value"] for one in items] == ["2000000m"]
        assert items[0]["metricLabels"]["pool"] == POOL
        assert set(fleet.requested) == {(NAMESPACE, POOL)}, "a proxy may ask again, and the controller once more"
        assert (await ask(api_server, "plumage_total_tokens_per_second", "pool%3Dnobody"))["items"] == []
        unknown = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/nonsense"
        assert "there is no metric 'nonsense'" in await kubectl(api_server, "get", "--raw", unknown, check=False)
