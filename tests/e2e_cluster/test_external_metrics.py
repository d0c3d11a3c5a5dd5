"""`helm upgrade --set externalMetrics.enabled=true`: a plain HorizontalPodAutoscaler scales a pool by the operator's
metrics, through the API server, with the chart's own certificates. The chart refuses this if another provider serves
that API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.kube_access import Access, until
from support.kube_install import ROOT, Pool, apply_pool, remove_pool, revision, rollback, upgrade, upgrade_words
from support.kube_load import Load

ENABLED = ("--set", "externalMetrics.enabled=true")
SERVICE = "v1beta1.external.metrics.k8s.io"
PATH = "/apis/external.metrics.k8s.io/v1beta1"
FOREIGN = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": SERVICE},
    "spec": {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"},
    },
}
# At most 240 tokens a second. A machine with a third of that speed also needs three replicas for this target.
LOAD = {"groups": 4, "prefix_words": 50, "turns": 1, "workers": 3, "pace_s": 0.5, "answer_tokens": 40}
TARGET = "30"
TOKENS = "plumage_total_tokens_per_second"


def test_chart_refuses_if_another_provider_serves_external_metrics(access: Access, installed: None) -> None:
    before = revision(access)
    access.kubectl("apply", "-f", "-", stdin=json.dumps(FOREIGN))
    try:
        refusal = access.refused(*upgrade_words(*ENABLED), program="helm")
        kept = json.loads(access.kubectl("get", "apiservice", SERVICE, "-o", "json"))["spec"]["service"]["namespace"]
    finally:
        access.kubectl("delete", "apiservice", SERVICE)
    assert f"the cluster has an APIService {SERVICE} already" in refusal
    assert "served by keda/keda-operator-metrics-apiserver" in refusal
    assert "Leave it off and scale by that provider" in refusal
    assert (kept, revision(access)) == ("keda", before)


@pytest.fixture(scope="module")
def served(access: Access, pool: Pool) -> Iterator[None]:
    """The operator of the release serves the API until a rollback."""
    installed = revision(access)
    upgrade(access, *ENABLED)
    access.kubectl("wait", "--for=condition=Available", f"apiservice/{SERVICE}", "--timeout=180s")
    yield
    rollback(access, installed)
    until(lambda: not access.kubectl("get", "apiservice", SERVICE, "--ignore-not-found"), "the API is gone with it")


@pytest.mark.usefixtures("served")
def test_hpa_scales_pool_by_operator_metrics(access: Access, pool: Pool) -> None:
    names = {one["name"] for one in json.loads(access.kubectl("get", "--raw", PATH))["resources"]}
    assert {TOKENS, "plumage_cache_miss_ratio_curable"} <= names
    load = Load.start(access, pool, port=8000, key="", model="tiny-chat", **LOAD)
    try:
        until(lambda: figure(access, pool, TOKENS) > 0, "the metric counts tokens of the load")
        access.kubectl("-n", pool.namespace, "apply", "-f", "-", stdin=json.dumps(sample()))
        until(lambda: engines(access, pool) == (3, 3), "it grew")
        assert ("kube-controller-manager", "scale") in written(access, pool), "by /scale"
    finally:
        load.stop()
    try:
        until(lambda: engines(access, pool) == (2, 2), "it shrank once the load was gone")
        said = rescales(access, pool)
    finally:
        access.kubectl("-n", pool.namespace, "delete", "hpa", pool.name)
    assert any(one.startswith(f"New size: 3; reason: external metric {TOKENS}") for one in said), said
    assert any(one.startswith("New size: 2; reason: All metrics below target") for one in said), said


@pytest.mark.usefixtures("served")
def test_hpa_scales_pool_without_replicas_in_manifest(access: Access) -> None:
    least = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
    assert "replicas" not in least["spec"]
    manifest = json.dumps({**least, "spec": {**least["spec"], "router": {"replicas": 1}}})
    unsized = apply_pool(access, "unsized", "chat", manifest)
    try:
        hpa = sample()
        hpa["spec"]["minReplicas"] = 2
        access.kubectl("-n", unsized.namespace, "apply", "-f", "-", stdin=json.dumps(hpa))
        until(lambda: engines(access, unsized) == (2, 2), "the HPA's least number is there")
        assert ("kube-controller-manager", "scale") in written(access, unsized)
        access.kubectl("-n", unsized.namespace, "apply", "-f", "-", stdin=manifest)
        assert access.api.get("inferencepools", "chat", "unsized")["spec"]["replicas"] == 2
    finally:
        access.kubectl("-n", unsized.namespace, "delete", "hpa", "chat", "--ignore-not-found")
        remove_pool(access, unsized)


def sample() -> dict[str, Any]:
    """The sample of examples/ with a smaller target and no windows. It has only the metric of tokens: the cache's
    metric needs two minutes of load, and an HPA removes no replica while one of its metrics is missing."""
    hpa: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "autoscaling" / "hpa.yaml").read_text())
    spec = hpa["spec"]
    spec["maxReplicas"] = 3
    spec["metrics"] = [one for one in spec["metrics"] if one["external"]["metric"]["name"] == TOKENS]
    spec["metrics"][0]["external"]["target"]["averageValue"] = TARGET
    for direction in ("scaleUp", "scaleDown"):
        spec["behavior"][direction] = {"stabilizationWindowSeconds": 0}
    return hpa


def figure(access: Access, pool: Pool, metric: str) -> float:
    """The metric as an HPA gets it, in whole units; 0 where there is none."""
    path = f"{PATH}/namespaces/{pool.namespace}/{metric}?labelSelector=pool%3D{pool.name}"
    items = json.loads(access.kubectl("get", "--raw", path))["items"]
    return sum(int(one["value"].removesuffix("m")) for one in items) / 1000


def engines(access: Access, pool: Pool) -> tuple[int, int]:
    """The number of pods, including terminating ones, and of Ready replicas."""
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    pods = access.api.names("pods", pool.namespace, chosen)
    status = access.api.get("inferencepools", pool.name, pool.namespace)["status"]
    return len(pods), int(status.get("readyReplicas", 0))


def written(access: Access, pool: Pool) -> set[tuple[str, str]]:
    """The clients that wrote to the pool, each with the subresource."""
    fields = access.api.get("inferencepools", pool.name, pool.namespace)["metadata"]["managedFields"]
    return {(one["manager"], one.get("subresource", "")) for one in fields}


def rescales(access: Access, pool: Pool) -> list[str]:
    events = access.api.listed("events", pool.namespace)
    return [one["message"] for one in events if one["reason"] == "SuccessfulRescale"]
