"""Requests that engines answer without generating: their fields, and what is sent on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from plumage.rendering.anthropic import anthropic_as_chat
from plumage.rendering.conversion import AsChat
from plumage_router.http.errors import RequestError
from plumage_router.http.paths import (
    CHAT_PATH,
    COMPLETION_PATH,
    ENGINE_PATHS,
    FORM_PATHS,
    MESSAGES_PATH,
    RESPONSES_PATH,
)
from plumage_router.request.pass_through import PASSED, SALTED
from plumage_router.request.prompt import PromptReader

VALID: dict[bytes, dict[str, Any]] = {
    b"/tokenize": {"prompt": "hello", "return_token_strs": True},
    b"/detokenize": {"tokens": [1, 2, 3]},
    b"/v1/messages/count_tokens": {"system": "s", "messages": [{"role": "user", "content": "a"}]},
    b"/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
    b"/v1/rerank": {"query": "q", "documents": ["a", "b"], "top_n": 1, "return_documents": True},
    b"/v2/rerank": {"query": "q", "documents": ["a", "b"]},
    b"/rerank": {"query": "q", "documents": ["a"]},
    b"/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    b"/score": {"queries": ["a"], "items": ["b"]},
}


class Renders:
    """A renderer that these requests must not call."""

    def render_chat(self, body: Mapping[str, Any]) -> bytes:
        raise AssertionError("nothing is rendered")

    def render_completion(self, prompt: str | Sequence[int], add_special_tokens: bool = True) -> bytes:
        raise AssertionError("nothing is rendered")

    def anthropic_as_chat(self, body: Mapping[str, Any], *, shape_only: bool = False) -> AsChat:
        return anthropic_as_chat(body, merge_system=False, disabled_effort=lambda: "none", shape_only=shape_only)


def reader(**options: Any) -> PromptReader:
    return PromptReader(Renders(), "tiny", aliases=("small",), **options)


def refusal(path: bytes, body: dict[str, Any], **options: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        reader().read(path, json.dumps(body).encode(), **options)
    return refused.value


def test_every_path_but_completions_is_passed_through() -> None:
    assert set(VALID) == set(PASSED)
    assert set(PASSED) | {CHAT_PATH, COMPLETION_PATH, MESSAGES_PATH, RESPONSES_PATH} | FORM_PATHS == ENGINE_PATHS
    assert len(ENGINE_PATHS) == len(PASSED) + 4 + len(FORM_PATHS)


@pytest.mark.parametrize("path", VALID)
def test_body_is_sent_on_unchanged(path: bytes) -> None:
    raw = json.dumps({"model": "tiny", **VALID[path]}, indent=1).encode()
    prompt = reader().read(path, raw)
    assert (prompt.path, prompt.payload, prompt.model) == (path, raw, "tiny")
    assert (prompt.generates, prompt.stream, prompt.text, list(prompt.chunks)) == (False, False, b"", [])


@pytest.mark.parametrize("path", VALID)
def test_alias_is_replaced_and_unknown_models_are_refused(path: bytes) -> None:
    prompt = reader().read(path, json.dumps({"model": "small", **VALID[path]}).encode())
    assert json.loads(prompt.payload)["model"] == "tiny"
    assert refusal(path, {"model": "other", **VALID[path]}).code == "model_not_found"
    assert refusal(path, VALID[path]).code == "missing_field"


@pytest.mark.parametrize("path", VALID)
def test_tenant_has_its_salt_where_the_engine_caches(path: bytes) -> None:
    raw = json.dumps({"model": "tiny", **VALID[path]}).encode()
    sent = json.loads(reader().read(path, raw, salt="own", tenant=True).payload)
    assert sent.get("cache_salt") == ("own" if path in SALTED else None)
    if path in SALTED:
        error = refusal(path, {"model": "tiny", **VALID[path], "cache_salt": "theirs"}, salt="own", tenant=True)
        assert (error.code, error.param) == ("field_not_allowed", "cache_salt")


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        (b"/tokenize", {}, "missing_field", "prompt"),
        (b"/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "invalid_type", "messages"),
        (b"/tokenize", {"prompt": ["a"]}, "invalid_type", "prompt"),
        (b"/tokenize", {"messages": []}, "invalid_type", "messages"),
        (b"/tokenize", {"prompt": "a", "chat_template": "{{ 1 }}"}, "field_not_allowed", "chat_template"),
        (b"/tokenize", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}]}, "media_url", None),
        (b"/v1/messages/count_tokens", {}, "missing_field", "messages"),
        (b"/v1/messages/count_tokens", {"messages": [{"role": "user", "content": 1}]}, "invalid_type",
         "messages[0].content"),
        (b"/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}] * 5000}, "too_many", "messages"),
        (b"/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}]}]}, "media_url", None),
        (b"/detokenize", {"tokens": [-1]}, "invalid_type", "tokens"),
        (b"/detokenize", {"tokens": "1"}, "invalid_type", "tokens"),
        (b"/v1/embeddings", {"input": [["a"]]}, "invalid_type", "input"),
        (b"/v1/embeddings", {"input": "a", "priority": -1}, "field_not_allowed", "priority"),
        (b"/v1/rerank", {"documents": ["a"]}, "missing_field", "query"),
        (b"/v1/rerank", {"query": "q", "documents": [{"content": [{"type": "image_url"}]}]}, "invalid_type",
         "documents"),
        (b"/v1/score", {"text_1": {"content": []}, "text_2": "a"}, "invalid_type", "text_1"),
        (b"/v1/score", {"text_1": "a", "text_2": ["b"] * 5000}, "too_many", "text_2"),
        (b"/v1/score", {"text_1": "a", "text_2": "b", "surprise": 1}, "field_not_allowed", "surprise"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(path: bytes, body: dict[str, Any], code: str, param: str | None) -> None:
    error = refusal(path, {"model": "tiny", **body})
    assert error.code == code
    assert param is None or error.param == param


@pytest.mark.parametrize("path", [b"/v1/rerank", b"/v1/score", b"/v1/embeddings"])
def test_text_that_an_engine_would_truncate_is_bounded(path: bytes) -> None:
    long = "a" * 100_000
    body = {b"/v1/rerank": {"query": "q", "documents": [long]}, b"/v1/score": {"text_1": "a", "text_2": long},
            b"/v1/embeddings": {"input": [long]}}[path]  # fmt: skip
    raw = json.dumps({"model": "tiny", "truncate_prompt_tokens": 10, **body}).encode()
    with pytest.raises(RequestError) as refused:
        reader(context=1000, longest_token=8).read(path, raw)
    assert refused.value.code == "context_length_exceeded"


def test_as_many_inputs_as_openai_allows_pass() -> None:
    raw = json.dumps({"model": "tiny", "input": ["a"] * 2048}).encode()
    assert reader().read(b"/v1/embeddings", raw).payload == raw


def test_pool_may_allow_further_fields() -> None:
    made = reader()
    made.allowed_fields = frozenset(("surprise",))
    raw = json.dumps({"model": "tiny", "input": "a", "surprise": 1}).encode()
    assert made.read(b"/v1/embeddings", raw).payload == raw


def test_text_beyond_any_context_is_refused_before_an_engine_tokenizes_it() -> None:
    raw = json.dumps({"model": "tiny", "prompt": "a" * (5 << 20)}).encode()
    with pytest.raises(RequestError) as refused:
        reader(context=1000, longest_token=8).read(b"/tokenize", raw)
    assert refused.value.code == "context_length_exceeded"
