"""Every rule of the manifests, each with its exact message."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.manifest_mistakes import FIELD_MISTAKES, GATEWAY_FIELD_MISTAKES, Mutation, gateway, pool, put
from support.manifest_rules import GATEWAY_RULES, RULES

from plumage.api.v1alpha1 import parse_manifest
from plumage.errors import ManifestError


def mistakes(document: dict[str, Any]) -> list[str]:
    try:
        parse_manifest(document, "pool.yaml")
    except ManifestError as error:
        return error.mistakes
    return []


def test_base_objects_are_valid() -> None:
    assert mistakes(pool()) == []
    assert mistakes(gateway()) == []


@pytest.mark.parametrize(("mutate", "message"), FIELD_MISTAKES + RULES)
def test_pool_mistake_has_its_message(mutate: Mutation, message: str) -> None:
    document = pool()
    mutate(document)
    assert message in mistakes(document)
    assert len(mistakes(document)) <= 1 + message.startswith("kind")  # a wrong kind may have its version


@pytest.mark.parametrize("kind", ["InferencePol", "inferencepool", "Pod", None])
@pytest.mark.parametrize("version", ["inference.plumage.dev/v1alpha2", "inference.plumage.dev/v1alpha1", None])
def test_wrong_kind_hides_no_other_mistake(kind: str | None, version: str | None) -> None:
    document = pool()
    put("spec.replicas", "four")(document)
    put("metadata.name", "Über")(document)
    document |= {"kind": kind, "apiVersion": version}
    document = {key: value for key, value in document.items() if value is not None}
    found = [line.partition(":")[0] for line in mistakes(document)]
    right = version == "inference.plumage.dev/v1alpha1"
    assert found == [*(["apiVersion"] * (not right)), "kind", "metadata.name", "spec.replicas"]


def test_document_of_another_group_is_refused() -> None:
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "four"}}
    assert [line.partition(":")[0] for line in mistakes(document)] == ["apiVersion", "kind"]


@pytest.mark.parametrize(("mutate", "message"), GATEWAY_FIELD_MISTAKES + GATEWAY_RULES)
def test_gateway_mistake_has_its_message(mutate: Mutation, message: str) -> None:
    document = gateway()
    mutate(document)
    assert mistakes(document) == [message]


# Mistakes in unrelated fields: each subset must be reported completely.
APART = [
    FIELD_MISTAKES[0],
    FIELD_MISTAKES[2],
    *(entry for entry in FIELD_MISTAKES if "spec.engine.feather.policy" in entry[1]),
    *(entry for entry in FIELD_MISTAKES if "spec.engin:" in entry[1]),
    *(entry for entry in RULES if entry[1].startswith(("spec.autoscaling.minReplicas", "spec.router.gatewayRef"))),
    *(
        entry
        for entry in RULES
        if entry[1].startswith(("spec.rollout.maxSurge", "spec.engine.eviction.hotness.filter"))
    ),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(range(len(APART))), unique=True, min_size=1))
def test_all_mistakes_are_reported_at_once(chosen: list[int]) -> None:
    document = pool()
    for index in chosen:
        APART[index][0](document)
    assert sorted(mistakes(document)) == sorted(APART[index][1] for index in chosen)


def test_rule_does_not_repeat_the_error_of_a_field_that_it_reads() -> None:
    document = pool()
    put("spec.autoscaling", {"minReplicas": "five", "maxReplicas": 2})(document)
    assert mistakes(document) == ["spec.autoscaling.minReplicas: must be an integer, got 'five'"]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = ["spec", "spec.model", "spec.engine", "spec.replicas", "spec.router", "spec.engine.env", "spec.engine.args",
          "spec.engine.resources", "spec.autoscaling", "spec.rollout.maxSurge", "metadata", "metadata.labels", "status",
          "spec.engine.hostMemory", "spec.engine.affinity", "spec.directory.redisRef"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), json)
def test_any_value_in_any_field_is_accepted_or_refused_with_a_message(place: str, value: object) -> None:
    document = copy.deepcopy(pool())
    put(place, value)(document)
    for line in mistakes(document):
        assert ": must " in line or ": may not " in line
        assert line.startswith(("spec", "metadata", "status"))


# A rule between two sections, and a wrong field of one section that the rule does not read.
BESIDE = [
    ("spec.engine.startupTimeoutSeconds", "long", "spec.engine.startupTimeoutSeconds: must be an integer, got 'long'"),
    ("spec.engine.args", ["--port=1"], "spec.engine.args[0]: may not be set: Plumage sets it itself, got '--port=1'"),
    (
        "spec.engine.env",
        [{"name": "POD_NAME", "value": "x"}],
        "spec.engine.env[0].name: may not be set: Plumage sets it itself, from feather, eviction, hostMemory, "
        "batchLimit and keysRef, got 'POD_NAME'",
    ),
    ("spec.engine.resources", {"limits": {"cpu": "much"}}, "spec.engine.resources.limits[cpu]: must be a quantity"),
]
BUILTIN = "spec.model.uri: may not be builtin:// with engine.runtime VLLM"


@pytest.mark.parametrize(("path", "value", "message"), BESIDE, ids=[path for path, *_ in BESIDE])
def test_rule_between_sections_is_reported_beside_a_mistake_in_one_of_them(
    path: str, value: object, message: str
) -> None:
    document = pool()
    put("spec.model.uri", "builtin://tiny-chat")(document)
    put("spec.engine.runtime", "VLLM")(document)
    put(path, value)(document)
    found = mistakes(document)
    assert [line for line in found if line.startswith(message)], found
    assert [line for line in found if line.startswith(BUILTIN)], found
    assert len(found) == 2


def test_rule_that_reads_a_wrong_field_is_left_out() -> None:
    document = pool()
    put("spec.model.uri", "builtin://tiny-chat")(document)
    put("spec.engine.runtime", "vllm")(document)
    assert mistakes(document) == ["spec.engine.runtime: must be VLLM or Simulator, got 'vllm'; did you mean VLLM?"]


def test_rule_about_a_list_is_reported_beside_a_mistake_in_an_entry() -> None:
    document = pool()
    put("spec.engine.runtime", "Simulator")(document)
    put("spec.engine.args", ["--port=1"])(document)
    assert mistakes(document) == [
        "spec.engine.args[0]: may not be set: Plumage sets it itself, got '--port=1'",
        "spec.engine.args: may not be set with runtime Simulator: its settings are under simulator, got 1 entry",
    ]


def test_misspelt_value_gets_the_nearest_one_as_a_hint() -> None:
    document = pool()
    put("spec.router.policy", "lbgr")(document)
    (line,) = mistakes(document)
    assert line.endswith("got 'lbgr'; did you mean Lbgr?")
