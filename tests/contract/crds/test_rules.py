"""Each rule on a real API server: its exact words, and the verdict that `plumage validate` gives without one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.crds import Kinds
from support.manifest_mistakes import FIELD_MISTAKES, GATEWAY_RULES, RULES, Mutation, gateway, pool, put

from plumage.api.crd import structs_in
from plumage.api.v1alpha1 import InferenceGateway, InferencePool, parse_manifest
from plumage.errors import ManifestError

# Less those of another kind or version, for which there is no address to send them to.
FIELDS = [(mutate, message) for mutate, message in FIELD_MISTAKES if not message.startswith(("kind:", "apiVersion:"))]


def told(message: str) -> tuple[str, str]:
    """The path and the words of one of our lines."""
    path, _, rest = message.partition(": ")
    return path, rest.rpartition(", got ")[0]


def accepts(document: dict[str, Any]) -> bool:
    try:
        parse_manifest(document, "test")
    except ManifestError:
        return False
    return True


@pytest.mark.parametrize(("mutate", "message"), RULES, ids=[message[:90] for _, message in RULES])
def test_a_pools_rule_has_the_same_words_on_the_server(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = pool()
    mutate(document)
    assert_said(kinds, document, message)


@pytest.mark.parametrize(("mutate", "message"), GATEWAY_RULES, ids=[message[:90] for _, message in GATEWAY_RULES])
def test_a_gateways_rule_has_the_same_words_on_the_server(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = gateway()
    mutate(document)
    assert_said(kinds, document, message)


def assert_said(kinds: Kinds, document: dict[str, Any], message: str) -> None:
    path, words = told(message)
    verdict = kinds.judge(document)
    assert verdict.code == 422, verdict.body
    at = {"metadata.name": ""}.get(path, path)
    assert [field for field, said in verdict.causes if said.endswith(f": {words}")], (words, verdict.causes)
    assert {field.replace("<nil>", "") for field, said in verdict.causes if words in said} == {at}, verdict.causes


@pytest.mark.parametrize(("mutate", "message"), FIELDS, ids=[message[:90] for _, message in FIELDS])
def test_a_wrong_field_is_refused_by_both(kinds: Kinds, mutate: Mutation, message: str) -> None:
    document = pool()
    mutate(document)
    assert not accepts(document)
    assert not kinds.judge(document).accepted, message


def test_every_rule_has_a_case() -> None:
    lines = [message for _, message in [*RULES, *GATEWAY_RULES]]
    rules = {rule.must for kind in (InferencePool, InferenceGateway) for one in structs_in(kind) for rule in one.rules}
    assert {must for must in rules if not any(f": {must}, got " in line for line in lines)} == set()


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
    ("spec.engine.hostMemory", {"minFrequency": 65_535, "filter": {"frequencyBits": 16}}),
    ("spec.engine.eviction.hotness", {"form": "Paper", "priority": "clock", "filter": {"clockBits": 16}}),
    ("spec.engine.args", ["--modelx", "--max-num-seqs=3", ""]),
    ("spec.engine.affinity", {"nodeAffinity": {"anything": [{"goes": 1}]}}),
    ("spec.engine.topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "zone"}]),
    ("spec.rollout", {"maxSurge": "0%", "maxUnavailable": 1}),
    ("spec.rollout", {"maxSurge": "25%"}),
    ("spec.model.uri", "oci://registry.example/qwen:8b"),
    ("spec.model.uri", "pvc://models/qwen/8b/"),
    ("spec.model.adapters", [{"name": "law", "uri": "hf://org/law"}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), RIGHT, ids=[f"{path} {value}"[:90] for path, value in RIGHT])
def test_what_is_right_is_accepted_by_both(kinds: Kinds, path: str, value: Any) -> None:
    document = pool()
    put(path, copy.deepcopy(value))(document)
    verdict = kinds.judge(document)
    assert verdict.accepted, verdict.body
    assert accepts(document)
    assert accepts(verdict.body), "what the server fills in is right too"


def test_the_name_that_clients_ask_for_does_not_change(kinds: Kinds) -> None:
    assert kinds.create(pool()).accepted
    refused = kinds.patch("InferencePool", "chat", {"spec": {"model": {"uri": "hf://Qwen/Qwen3-32B"}}})
    (cause,) = refused.causes
    assert cause[0] == "spec.model"
    words = "may not change the name that clients ask for (name, or the last part of uri): engines of both names would"
    assert words in cause[1]
    kept = {"spec": {"model": {"uri": "hf://Qwen/Qwen3-32B", "name": "Qwen3-8B"}}}
    assert kinds.patch("InferencePool", "chat", kept).accepted, "other weights under the same name can be rolled"
    for change in ({"engine": {"runtime": "VLLM", "image": "other:1"}}, {"router": {"gatewayRef": {"name": "front"}}}):
        assert kinds.patch("InferencePool", "chat", {"spec": change}).accepted
