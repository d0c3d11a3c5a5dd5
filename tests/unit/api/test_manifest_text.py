"""Manifests as text: several documents, nulls, duplicate keys, alias bombs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.api.v1alpha1 import API_VERSION, InferenceGateway, InferencePool, load_manifests, load_pool, read_documents
from plumage.errors import ManifestError

POOL = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: "builtin://tiny-chat"}
  engine: {runtime: Simulator}
"""
GATEWAY = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferenceGateway
metadata: {name: front}
spec: {models: [{name: chat, pools: [{poolRef: {name: chat}}]}]}
"""


def refused(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_pool(text, "pool.yaml")
    assert str(caught.value).startswith("pool.yaml: ")
    return caught.value.mistakes


def test_several_documents_are_read() -> None:
    kinds = [type(manifest) for manifest in load_manifests(f"{POOL}---\n---\n{GATEWAY}", "all.yaml")]
    assert kinds == [InferencePool, InferenceGateway]
    assert load_pool(f"{GATEWAY}---\n{POOL}", "all.yaml").metadata.name == "chat"


def test_duplicate_name_is_refused() -> None:
    text = f"{POOL}---\n{GATEWAY}---\n{POOL.replace('chat}', 'chat, namespace: default}')}"
    with pytest.raises(ManifestError) as caught:
        load_manifests(text, "all.yaml")
    assert caught.value.mistakes == [
        "document 3: metadata.name: must be unique, got that of document 1: InferencePool default/chat"
    ]
    other = f"{POOL}---\n{POOL.replace('chat}', 'chat, namespace: other}')}---\n{GATEWAY.replace('front', 'chat')}"
    assert len(load_manifests(other, "all.yaml")) == 3


def test_mistakes_of_all_documents_are_reported() -> None:
    bad = POOL.replace("Simulator", "simulator")
    assert refused(f"{bad}---\n{bad}") == [
        "document 1: spec.engine.runtime: must be VLLM or Simulator, got 'simulator'; did you mean Simulator?",
        "document 2: spec.engine.runtime: must be VLLM or Simulator, got 'simulator'; did you mean Simulator?",
        "must hold exactly one InferencePool, got 2",
    ]


def test_duplicate_key_hides_no_other_mistake() -> None:
    twice = POOL.replace("metadata: {name: chat}", "metadata: {name: chat, name: Chat}")
    bad = GATEWAY.replace("name: front", "name: Front")
    assert refused(f"{twice}  replicas: four\n---\n{bad}---\n- 1\n") == [
        "document 1: metadata.name: may not be set twice, line 4",
        "document 1: metadata.name: must be lowercase letters, digits, '-' and '.', beginning and ending with a letter "
        "or digit, got 'Chat'",
        "document 1: spec.replicas: must be an integer, got 'four'",
        "document 2: metadata.name: must be lowercase letters, digits, '-' and '.', beginning and ending with a letter "
        "or digit, got 'Front'",
        "document 3 must be a mapping, got list",
    ]


def test_duplicate_key_is_named_at_any_depth() -> None:
    assert refused("a: [{b: 1, b: 2}]")[0] == "a[0].b: may not be set twice, line 1"
    assert refused("a:\na:\n")[:2] == [
        "a: may not be set twice, line 2",
        f"apiVersion: must be {API_VERSION}, got nothing",
    ]


def test_merged_key_counts_as_set() -> None:
    assert refused("a: &a {b: 1}\nc: {<<: *a, b: 2}")[0] == "c.b: may not be set twice, line 2"
    assert refused("a: &a {b: 1}\nc: {b: 2, <<: [{d: 1}, {<<: *a}]}")[0] == "c.b: may not be set twice, line 2"
    assert read_documents("a: &a {b: 1}\nc: {<<: *a, d: 2}", "merged")[0].content == {
        "a": {"b": 1}, "c": {"b": 1, "d": 2},
    }  # fmt: skip


@pytest.mark.parametrize(("text", "form"), [("[1]", "list"), ("just text", "str")])
def test_document_without_mapping_is_no_pool(text: str, form: str) -> None:
    assert refused(text) == [
        f"document 1 must be a mapping, got {form}",
        "must hold exactly one InferencePool, got 0",
    ]


def test_exactly_one_pool_is_required() -> None:
    assert refused(f"{POOL}---\n{POOL.replace('chat}', 'other}')}") == ["must hold exactly one InferencePool, got 2"]
    two = refused(f"{POOL}---\n{POOL.replace('Simulator', 'simulator')}")
    assert [line.partition(":")[0] for line in two] == ["document 2", "must hold exactly one InferencePool, got 2"]
    assert refused(GATEWAY) == ["must hold exactly one InferencePool, got 0"]
    assert refused("") == ["must hold a manifest of kind InferencePool or InferenceGateway, got an empty text"]


def test_null_means_absent() -> None:
    pool = load_pool(POOL + "  router:\n  autoscaling: ~\n", "pool.yaml")
    assert pool.spec.router.policy == "Lbgr"
    assert pool.spec.autoscaling is None


def test_numbers_are_read_as_kubectl_reads_them() -> None:
    text = "a: [1e3, 1.5e3, .5e1, 0o17, -0o7, 017, 1_000, 0x1f, 12e4567, 1e, e3, '1e3', .inf]"
    read = read_documents(text, "numbers")[0].content
    assert read == {"a": [1000.0, 1500.0, 5.0, 15, -7, 15, 1000, 31, "12e4567", "1e", "e3", "1e3", float("inf")]}
    commit = POOL.replace('"builtin://tiny-chat"', '"builtin://tiny-chat", revision: 1e3')
    assert refused(commit) == ["spec.model.revision: must be a string, got 1000.0"]


def test_fields_that_an_api_server_adds_are_accepted() -> None:
    added = POOL.replace(
        "{name: chat}", "{name: chat, uid: u-1, generation: 3, resourceVersion: '7', managedFields: []}"
    )
    assert load_pool(added, "pool.yaml").metadata.generation == 3


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (POOL + "  model: {uri: 'hf://some/other'}\n", "spec.model: may not be set twice, line 8"),
        ("a: &a [*a]", "may not contain itself, line 1"),
        ("a: " + "[" * 70 + "]" * 70, "must be nested at most 64 levels deep, line 1"),
        ("a: " + "[" * 100_000, "must be nested at most 64 levels deep, line 1"),
        ("x" * 1_000_001, "must be at most 1,000,000 characters of YAML, got 1,000,001"),
        ("a: 1\n---\n" * 101, "must hold at most 100 documents"),
    ],
)
def test_invalid_text_is_refused(text: str, mistake: str) -> None:
    assert refused(text) == [mistake]


def test_billion_laughs_are_refused_before_they_are_built() -> None:
    lines = ["a0: &a0 [" + "x," * 9 + "]"]
    lines += [f"a{n}: &a{n} [" + f"*a{n - 1}," * 9 + "]" for n in range(1, 20)]
    assert refused("\n".join(lines)) == ["must hold at most 100,000 values, aliases expanded, line 6"]


def test_chain_of_aliases_counts_towards_the_depth() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300)]
    assert refused("\n".join(lines)) == ["must be nested at most 64 levels deep, aliases expanded, line 65"]


def test_few_aliases_are_accepted() -> None:
    text = POOL.replace('"builtin://tiny-chat"', '&uri "builtin://tiny-chat", tokenizer: *uri')
    assert load_pool(text, "pool.yaml").spec.model.tokenizer == "builtin://tiny-chat"


@pytest.mark.parametrize("text", ["a: [", "a: !!python/object:os.system {}", "a: 2020-13-45", "a: \x00", "? [1]\n: 2"])
def test_unusual_yaml_tags_are_refused(text: str) -> None:
    assert refused(text)[0].startswith("must be YAML: ")


def test_number_too_long_for_python_is_refused() -> None:
    assert refused("a: " + "9" * 10_000)[0].startswith("must be YAML: ")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        documents = read_documents(text, "any.yaml")
    except ManifestError:
        return
    assert all(isinstance(document.content, dict) or document.mistakes for document in documents)
