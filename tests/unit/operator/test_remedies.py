"""Every remedy names existing fields of the component that fails."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from support.operator_world import CONFIG, pod_object, pool_object

from plumage.api.v1alpha1 import InferenceGateway, InferencePool, parse_kept
from plumage.cluster import COMPONENT_LABEL
from plumage_operator.resources import GatewayContext, PoolContext, build_children, build_gateway_children
from plumage_operator.resources.context import ServedPool
from plumage_operator.status.diagnosis import diagnose

VALUES = yaml.safe_load(Path("charts/plumage/values.yaml").read_text())
FIELD = re.compile(r"(the pool's )?(spec(?:\.[a-zA-Z]+)+)")
CHART_VALUE = re.compile(r"\b(image\.[a-z]+|engineImage|(?<!\.)imagePullSecrets)\b")
OF = {
    "engine": ("spec.engine", "spec.model"),
    "router": ("spec.router", "spec.model"),
    "gateway": ("spec",),
    "directory": ("spec.directory",),
}
QUOTA = 'pods "x" is forbidden: failed quota: mem: must specify limits.memory for: {}'


def pool(uri: str, runtime: str) -> PoolContext:
    spec = {"model": {"uri": uri}, "engine": {"runtime": runtime}, "replicas": 2}
    read = parse_kept(pool_object(spec), "test")
    assert isinstance(read, InferencePool)
    return PoolContext(read, CONFIG, 2)


def gateway() -> GatewayContext:
    meta = {"name": "front", "namespace": "default", "uid": "gateway-uid"}
    spec = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]}
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferenceGateway"}
    read = parse_kept({**kind, "metadata": meta, "spec": spec}, "test")
    assert isinstance(read, InferenceGateway)
    return GatewayContext(
        read, CONFIG, (ServedPool(replace(pool("hf://org/name", "VLLM"), volume_suffix="-chat"), ("chat",)),)
    )


def containers() -> list[tuple[str, str]]:
    """Each component and container in pods of pools and gateways."""
    children = [
        child for uri in ("hf://org/name", "builtin://tiny-llama") for child in build_children(pool(uri, "VLLM"), ())
    ]
    found = set()
    for child in [*children, *build_gateway_children(gateway())]:
        if child["kind"] == "Deployment":
            template = child["spec"]["template"]
            component = template["metadata"]["labels"][COMPONENT_LABEL]
            pod = template["spec"]
            found |= {(component, one["name"]) for one in [*pod.get("initContainers", []), *pod["containers"]]}
    return sorted(found)


def statuses(container: str) -> dict[str, dict[str, Any]]:
    """A pod's status for each cause that a container can have, and for those of the whole pod."""

    def waiting(reason: str) -> dict[str, Any]:
        state = {"waiting": {"reason": reason, "message": "words"}}
        return {"containerStatuses": [{"name": container, "image": "i:1", "ready": False, "state": state}]}

    def ended(reason: str) -> dict[str, Any]:
        status = waiting("CrashLoopBackOff")
        status["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 137, "reason": reason}}
        return status

    def unscheduled(message: str) -> dict[str, Any]:
        return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}

    pulls = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
    return {
        **{reason: waiting(reason) for reason in (*pulls, "CreateContainerConfigError", "RunContainerError")},
        **{reason: ended(reason) for reason in ("OOMKilled", "Error", "ContainerStatusUnknown")},
        "Unschedulable": unscheduled("0/1 nodes are available: 1 Insufficient memory."),
        "Evicted": {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
    }


def refused(message: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}


def messages(component: str, container: str) -> dict[str, str]:
    found = {}
    for name, status in statuses(container).items():
        cause = diagnose([pod_object(component, **status)], None, [], component)
        assert cause is not None, name
        found[name] = cause.message
    late = {"status": {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}}
    for name, deployment in {"quota": refused(QUOTA.format(container)), "late": late}.items():
        cause = diagnose([], deployment, [], component)
        assert cause is not None
        found[name] = cause.message
    return found


def has_field(model: type[BaseModel], path: str) -> bool:
    """Whether the dotted path leads to a field. Below a mapping any key is valid."""
    held: Any = model
    for part in path.split("."):
        if not (isinstance(held, type) and issubclass(held, BaseModel)):
            return "dict" in str(held).lower() or "mapping" in str(held).lower()
        field = next((one for name, one in held.model_fields.items() if (one.alias or name) == part), None)
        if field is None:
            return False
        inner = [one for one in getattr(field.annotation, "__args__", ()) if isinstance(one, type)]
        structs = [one for one in inner if issubclass(one, BaseModel)]
        held = structs[0] if structs and "tuple" not in str(field.annotation) else field.annotation
    return True


def test_has_field_finds_existing_fields_only() -> None:
    assert has_field(InferencePool, "spec.engine.resources.limits.memory")
    assert not has_field(InferencePool, "spec.engine.resources.limit.memory")
    assert not has_field(InferencePool, "spec.router.imagePullSecret")


@pytest.mark.parametrize(("component", "container"), containers())
def test_remedy_names_existing_fields_of_its_own_component(component: str, container: str) -> None:
    for name, message in messages(component, container).items():
        for other, path in FIELD.findall(message):
            kind = InferenceGateway if component == "gateway" and not other else InferencePool
            assert has_field(kind, path), f"{name}: {path} of {component}: {message}"
            assert other or path.startswith(OF[component]), f"{name}: {path} is no field of {component}: {message}"
        for value in CHART_VALUE.findall(re.sub(FIELD, "", message)):
            held: Any = VALUES
            for key in value.split("."):
                assert key in held, f"{name}: the chart has no value {value}: {message}"
                held = held[key]


def test_all_components_are_walked() -> None:
    found = containers()
    assert {component for component, _ in found} == {"engine", "router", "gateway", "directory"}
    assert ("engine", "agent") in found
    assert ("engine", "weights") in found
    assert any(component == "gateway" and container.startswith("tokenizer-") for component, container in found)


@pytest.mark.parametrize(
    ("component", "container", "cause", "text"),
    [
        ("engine", "engine", "OOMKilled", "Raise spec.engine.resources.limits.memory"),
        ("router", "router", "OOMKilled", "Raise spec.router.resources.limits.memory"),
        ("directory", "directory", "OOMKilled", "Raise spec.directory.managed.resources.limits.memory"),
        ("engine", "agent", "OOMKilled", "Raise spec.engine.agentResources.limits.memory"),
        ("engine", "tokenizer", "OOMKilled", "Raise spec.model.fetchResources.limits.memory"),
        ("gateway", "router", "OOMKilled", "Raise spec.resources.limits.memory"),
        ("gateway", "tokenizer-chat", "OOMKilled", "Raise the pool's spec.model.fetchResources.limits.memory"),
        ("engine", "agent", "quota", "Set spec.engine.agentResources"),
        ("directory", "directory", "quota", "Set spec.directory.managed.resources"),
        ("directory", "directory", "Unschedulable", "spec.directory.managed.nodeSelector"),
        ("gateway", "router", "Unschedulable", "spec.tolerations"),
        ("engine", "engine", "ImagePullBackOff", "spec.engine.imagePullSecrets"),
        ("engine", "agent", "ImagePullBackOff", "the chart's values image.repository"),
        ("router", "router", "ImagePullBackOff", "the chart's values image.repository"),
        ("engine", "engine", "quota", "Set spec.engine.resources"),
        ("router", "router", "quota", "Set spec.router.resources"),
        ("router", "router", "Unschedulable", "spec.router.resources"),
    ],
)
def test_remedy_names_the_field(component: str, container: str, cause: str, text: str) -> None:
    assert text in messages(component, container)[cause]


def test_start_timeout_is_named_for_engines_only() -> None:
    assert "spec.engine.startupTimeoutSeconds" in messages("engine", "engine")["late"]
    assert "spec." not in messages("router", "router")["late"]
