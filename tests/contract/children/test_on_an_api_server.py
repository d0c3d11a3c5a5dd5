"""Children of kinds that not every cluster has, sent strictly to a real API server, as the operator sends them.

Ingress is Kubernetes' own. HTTPRoute, PodMonitor and the Gateway API's InferencePool come with the definitions of their
projects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.needs import missing

from plumage.api.v1alpha1 import parse_pool
from plumage_operator.config import OperatorConfig
from plumage_operator.resources import PoolContext, build_children

if TYPE_CHECKING:
    from cluster.api_only import ApiServer
    from cluster.kinds import Definition

EXAMPLES = Path(__file__).parents[3] / "examples"
CONFIG = OperatorConfig(image="plumage:1", engine_image="engine:1")
EXPOSED: dict[str, Any] = {
    "ingress": {
        "host": "chat.example.com",
        "className": "nginx",
        "tlsSecretRef": {"name": "chat-tls"},
        "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
    },
    "httpRoute": {
        "parentRefs": [
            {"name": "edge", "namespace": "gateways", "sectionName": "https"},
        ],
        "hostnames": ["chat.example.com"],
    },
    "endpointPicker": {"port": 9100, "inferencePool": {"failureMode": "FailOpen"}},
}


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    from cluster.kinds import HTTP_ROUTES, POD_MONITORS

    with defined(api_server, HTTP_ROUTES, POD_MONITORS):
        yield api_server


@contextmanager
def defined(api_server: ApiServer, *kinds: Definition) -> Iterator[None]:
    """The API server knows these kinds meanwhile."""
    from cluster.errors import NotHereError
    from cluster.kinds import definition

    with ExitStack() as stack:
        for wanted in kinds:
            try:
                path = str(definition(wanted))
            except NotHereError as error:
                missing(f"the definition in {wanted.file}", str(error))
            api_server.kubectl("apply", "--server-side", "-f", path)
            stack.callback(api_server.kubectl, "delete", "-f", path)
        api_server.established()
        yield


@pytest.fixture(scope="module")
def sent(api_server: ApiServer) -> Iterator[Any]:
    """The stored object after the request. The strictness is the operator's for this kind."""
    api_server.kubectl("create", "namespace", "exposed")

    def send(child: dict[str, Any], verb: str, check: bool = True) -> Any:
        more = ("--server-side", "--force-conflicts") if verb == "apply" else ()
        done = api_server.kubectl(
            verb, *more, "--validate=strict", "-o", "json", "-f", "-", stdin=json.dumps(child), check=False
        )
        assert (done.returncode == 0) is check, done.stderr
        return json.loads(done.stdout) if check else done.stderr

    yield send
    api_server.kubectl("delete", "namespace", "exposed", "--wait=false")


def children(kind: str) -> list[dict[str, Any]]:
    document = {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat", "namespace": "exposed", "uid": "7d1c0e4e-6e9b-4f52-9d5c-111111111111"},
        "spec": {
            "model": {"uri": "builtin://tiny-chat"},
            "engine": {"runtime": "Simulator"},
            "router": EXPOSED,
            "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        },
    }
    built = build_children(PoolContext(parse_pool(document, "chat"), CONFIG, 2))
    return [json.loads(json.dumps(child)) for child in built if child["kind"] == kind]


def test_ingress_is_accepted_and_changed(sent: Any) -> None:
    (child,) = children("Ingress")
    accepted_and_changed(sent, child, unknown=("spec", "backends"))


def test_http_route_is_accepted_and_changed(server: ApiServer, sent: Any) -> None:
    (child,) = children("HTTPRoute")
    accepted_and_changed(sent, child, unknown=("spec", "hosts"))


def test_pod_monitors_are_accepted_and_changed(server: ApiServer, sent: Any) -> None:
    found = children("PodMonitor")
    assert len(found) == 2
    for child in found:
        accepted_and_changed(sent, child, unknown=("spec", "endpoints"))


@pytest.mark.parametrize("release", ["FIRST_INFERENCE_POOLS", "INFERENCE_POOLS"])
def test_published_pool_is_accepted_and_changed(api_server: ApiServer, sent: Any, release: str) -> None:
    from cluster import kinds

    (child,) = children("InferencePool")
    example, _ = yaml.safe_load_all((EXAMPLES / "endpoint-picker" / "external.yaml").read_text())
    example["metadata"]["namespace"] = "exposed"
    with defined(api_server, getattr(kinds, release)):
        accepted_and_changed(sent, child, unknown=("spec", "targetPort"))
        accepted_and_changed(sent, example, unknown=("spec", "targetPort"))


def test_route_of_the_example_is_accepted(server: ApiServer, sent: Any) -> None:
    _, route = yaml.safe_load_all((EXAMPLES / "endpoint-picker" / "gateway-api.yaml").read_text())
    route["metadata"]["namespace"] = "exposed"
    accepted_and_changed(sent, route, unknown=("spec", "hosts"))


def test_service_of_the_endpoint_picker_is_accepted_and_changed(sent: Any) -> None:
    (child,) = [one for one in children("Service") if one["metadata"]["name"] == "chat-picker"]
    accepted_and_changed(sent, child, unknown=("spec", "protocols"))


def accepted_and_changed(sent: Any, child: dict[str, Any], unknown: tuple[str, str]) -> None:
    """Created, then applied. Nothing is dropped, and an unknown field is refused, so the server checked every field."""
    assert holds(sent(child, "create")["spec"], child["spec"])
    assert holds(
        sent({**child, "metadata": {**child["metadata"], "labels": {"a": "b"}}}, "apply")["spec"], child["spec"]
    )
    part, field = unknown
    wrong = {**child, part: {**child[part], field: []}, "metadata": {**child["metadata"], "name": "wrong"}}
    assert f'unknown field "{part}.{field}"' in sent(wrong, "create", check=False)


def holds(kept: Any, asked: Any) -> bool:
    """Whether the stored object contains all that was requested. It has defaults beside it."""
    if isinstance(asked, dict):
        return isinstance(kept, dict) and all(name in kept and holds(kept[name], asked[name]) for name in asked)
    if isinstance(asked, list):
        return len(kept) == len(asked) and all(map(holds, kept, asked))
    return bool(kept == asked)
