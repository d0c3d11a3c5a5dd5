"""Kubernetes' own EndpointSlices of a pool's Service, while a rollout adds or removes `engine.tls`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import looks

from plumage.api.v1alpha1 import parse_pool
from plumage.endpoint_slices import SERVICE_LABEL, members_of
from plumage_operator.config import OperatorConfig
from plumage_operator.observed import key_of
from plumage_operator.resources import PoolContext, build_children

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

pytestmark = pytest.mark.timeout(400)  # a busy machine's API server takes a minute to begin

CONFIG = OperatorConfig(image="plumage:1", engine_image="engine:1")
NAMESPACE = "sliced"


def children(tls: dict[str, Any] | None) -> dict[tuple[str, str], Any]:
    document = {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat", "namespace": NAMESPACE, "uid": "7d1c0e4e-6e9b-4f52-9d5c-111111111111"},
        "spec": {
            "model": {"uri": "builtin://tiny-chat"},
            "engine": {"runtime": "Simulator", **({} if tls is None else {"tls": tls})},
        },
    }
    built = build_children(PoolContext(parse_pool(document, "chat"), CONFIG, 1))
    return {key_of(child): json.loads(json.dumps(child)) for child in built}


@pytest.fixture
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    api_server.kubectl("create", "namespace", NAMESPACE)
    yield api_server
    api_server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def apply(server: ApiServer, child: dict[str, Any]) -> None:
    child["metadata"].pop("ownerReferences", None)  # the pool is no object here
    server.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=json.dumps(child))


def run_pod(server: ApiServer, name: str, address: str, template: dict[str, Any]) -> None:
    """A pod of a Deployment, ready as a kubelet would report it."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
    apply(server, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    server.kubectl("-n", NAMESPACE, "patch", "pod", name, "--subresource=status", "-p", json.dumps({"status": status}))


def urls(server: ApiServer) -> list[str]:
    found = server.kubectl("-n", NAMESPACE, "get", "endpointslices", "-l", f"{SERVICE_LABEL}=chat-engine", "-o", "json")
    return [member.url for member in members_of(json.loads(found.stdout)["items"])]


def test_each_pod_is_reached_as_it_serves(server: ApiServer) -> None:
    plain, secure = children(None), children({"secretName": "chat-engine-tls"})
    apply(server, plain["ServiceAccount", "chat-engine"])
    apply(server, plain["Service", "chat-engine"])
    run_pod(server, "old", "10.0.0.1", plain["Deployment", "chat-engine"]["spec"]["template"])
    run_pod(server, "new", "10.0.0.2", secure["Deployment", "chat-engine"]["spec"]["template"])
    wanted = ["https://10.0.0.2:8000", "http://10.0.0.1:8000"]  # by the pods' names
    seen = (urls(server) for _ in looks(60.0))
    assert wanted in seen
    for made in (secure, plain):  # the Service stays, whichever way the pool changes
        apply(server, made["Service", "chat-engine"])
        time.sleep(1)
        assert urls(server) == wanted
