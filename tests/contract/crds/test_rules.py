"""Each rule on a real API server: its exact message there, and the verdict of `plumage validate` without a server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.crds import CRDS, Kinds
from support.manifest_mistakes import FIELD_MISTAKES, GATEWAY_FIELD_MISTAKES, Mutation, gateway, pool, put
from support.manifest_rules import CHANGES, GATEWAY_RULES, RULES

from plumage.api.v1alpha1 import parse_manifest
from plumage.errors import ManifestError


def messages_in(node: Any) -> Iterator[str]:
    """Messages of every rule below a part of a definition: a model's own and those of its field types."""
    if isinstance(node, dict):
        yield from (rule["message"] for rule in node.get("x-kubernetes-validations", ()))
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from messages_in(part)


def path_and_message(message: str) -> tuple[str, str]:
    """The path and the message of one line of ours."""
    path, _, rest = message.partition(": ")
    return path, rest.rpartition(", got ")[0]


MESSAGES = {
    definition["spec"]["names"]["kind"]: set(messages_in(definition))
    for definition in map(yaml.safe_load, (path.read_text() for path in CRDS.glob("*.yaml")))
}


def is_in_a_definition(kind: str, message: str) -> bool:
    """A server checks an object's name by its own pattern first, with its own message."""
    path, text = path_and_message(message)
    return text in MESSAGES[kind] and not path.startswith("metadata.")


POOLS = [*(case for case in FIELD_MISTAKES if is_in_a_definition("InferencePool", case[1])), *RULES]
GATEWAYS = [*GATEWAY_FIELD_MISTAKES, *GATEWAY_RULES]
# Objects of another kind or version are left out: they have no address on the server.
OTHERS = [case for case in FIELD_MISTAKES if case not in POOLS and not case[1].startswith(("kind:", "apiVersion:"))]


def mistakes(document: dict[str, Any]) -> list[str]:
    try:
        parse_manifest(document, "test")
    except ManifestError as error:
        return error.mistakes
    return []


@pytest.mark.parametrize(("mutate", "message"), POOLS, ids=[message[:90] for _, message in POOLS])
def test_pool_rule_has_the_same_message_on_the_server(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = pool()
    mutate(document)
    assert_reported(kinds, document, message)


@pytest.mark.parametrize(("mutate", "message"), GATEWAYS, ids=[message[:90] for _, message in GATEWAYS])
def test_gateway_rule_has_the_same_message_on_the_server(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = gateway()
    mutate(document)
    assert_reported(kinds, document, message)


def assert_reported(kinds: Kinds, document: dict[str, Any], message: str) -> None:
    """Server and parser report the same field."""
    path, text = path_and_message(message)
    verdict = kinds.judge(document)
    assert verdict.code == 422, verdict.body
    at = {"metadata.name": ""}.get(path, path)
    assert [field for field, cause in verdict.causes if cause.endswith(f": {text}")], (text, verdict.causes)
    assert {field.replace("<nil>", "") for field, cause in verdict.causes if text in cause} == {at}, verdict.causes
    assert f"{path}: {text}" in [line.rpartition(", got ")[0] for line in mistakes(document)]


@pytest.mark.parametrize(("mutate", "message"), OTHERS, ids=[message[:90] for _, message in OTHERS])
def test_wrong_field_is_refused_by_both(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = pool()
    mutate(document)
    assert mistakes(document)
    assert not kinds.judge(document).accepted, message


def test_every_rule_of_the_definitions_has_a_case() -> None:
    cases = {"InferencePool": [*POOLS, *CHANGES], "InferenceGateway": GATEWAYS}
    for kind, messages in MESSAGES.items():
        assert messages - {path_and_message(message)[1] for _, message in cases[kind]} == set(), kind


RIGHT: list[tuple[str, Any]] = [
    ("metadata.name", "c" * 53),
    ("spec.replicas", 0),
    ("spec.replicas", 1000),
    ("spec.autoscaling", {"minReplicas": 0, "maxReplicas": 3}),
    ("spec.autoscaling", {"maxReplicas": 3, "metrics": [{"type": "QueueWait", "targetMilliseconds": 9}]}),
    ("spec.router", {"gatewayRef": {"name": "front"}}),
    ("spec.directory", {"redisRef": {"url": "rediss+sentinel://a:1,b:2/main", "caRef": {"name": "ca", "key": "crt"}}}),
    ("spec.directory", {"managed": {}}),
    ("spec.engine", {"runtime": "Simulator", "simulator": {}}),
    ("spec.engine", {"resources": {"limits": {"memory": "8Gi"}}, "hostMemory": {"capacity": "8191Mi"}}),
    ("spec.engine", {"resources": {"requests": {"cpu": 1}, "limits": {"cpu": "1000m"}}}),
    ("spec.engine", {"resources": {"limits": {"nvidia.com/gpu": 2}}, "tensorParallelSize": 2}),
    ("spec.engine", {"resources": {"limits": {"nvidia.com/gpu": 0}}}),
    ("spec.engine", {"resources": {"limits": {"nvidia.com/gpu": "0", "amd.com/gpu": "2"}}, "tensorParallelSize": 2}),
    ("spec.engine.hostMemory", {"capacity": "1Gi", "minFrequency": 65_535, "filter": {"frequencyBits": 16}}),
    ("spec.engine.eviction.hotness", {"form": "Paper", "priority": "clock", "filter": {"clockBits": 16}}),
    ("spec.engine.args", ["--modelx", "--max-num-seqs=3", ""]),
    ("spec.engine.env", [{"name": "VLLM_PLUGINS", "value": "other,plumage"}, {"name": "HOME", "value": "/data"}]),
    ("spec.rollout", {"maxSurge": "0%", "maxUnavailable": 1}),
    ("spec.rollout", {"maxSurge": "25%"}),
    ("spec.model.uri", "oci://registry.example/qwen:8b"),
    ("spec.model.uri", "pvc://models/qwen/8b/"),
    ("spec.model.adapters", [{"name": "law", "uri": "hf://org/law"}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), RIGHT, ids=[f"{path} {value}"[:90] for path, value in RIGHT])
def test_valid_objects_are_accepted_by_both(kinds: Kinds, path: str, value: Any) -> None:
    document = pool()
    put(path, copy.deepcopy(value))(document)
    verdict = kinds.judge(document)
    assert verdict.accepted, verdict.body
    assert mistakes(document) == []
    assert mistakes(verdict.body) == [], "an object with the server's defaults is valid too"


def test_model_name_is_immutable(kinds: Kinds) -> None:
    assert kinds.create(pool()).accepted
    for change, message in CHANGES:
        ((field, cause),) = kinds.patch("InferencePool", "chat", change).causes
        path, text = path_and_message(message)
        assert (field, cause.endswith(f": {text}")) == (path, True), cause
    kept = {"spec": {"model": {"uri": "hf://Qwen/Qwen3-32B", "name": "Qwen3-8B"}}}
    assert kinds.patch("InferencePool", "chat", kept).accepted, "other weights under the same name are a rollout"
    for change in ({"engine": {"runtime": "VLLM", "image": "other:1"}}, {"router": {"gatewayRef": {"name": "front"}}}):
        assert kinds.patch("InferencePool", "chat", {"spec": change}).accepted
