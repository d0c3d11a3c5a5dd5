"""Requests that an engine answers without generating: tokenize, detokenize, count_tokens, embeddings, rerank and score.

The router checks their fields and sends the body on. It reads no prompt of them, so a replica is chosen by load. A pool
whose model does not serve an endpoint answers as its engine does, mostly with 404.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from plumage_router.http.errors import bad_field
from plumage_router.http.paths import (
    COUNT_TOKENS_PATH,
    DETOKENIZE_PATH,
    EMBEDDINGS_PATH,
    RERANK_PATHS,
    SCORE_PATHS,
    TOKENIZE_PATH,
)
from plumage_router.request.fields import (
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MAX_INPUTS,
    RERANK,
    SCORE,
    TOKENIZE,
    Check,
    check_fields,
    check_messages,
    check_prompt,
    check_template_options,
)

__all__ = ["PASSED", "SALTED", "check_passed"]

PASSED: Final[Mapping[bytes, Mapping[str, Check]]] = MappingProxyType(
    {
        TOKENIZE_PATH: TOKENIZE,
        DETOKENIZE_PATH: DETOKENIZE,
        COUNT_TOKENS_PATH: COUNT_TOKENS,
        EMBEDDINGS_PATH: EMBEDDINGS,
        **dict.fromkeys(RERANK_PATHS, RERANK),
        **dict.fromkeys(SCORE_PATHS, SCORE),
    }
)
"""The fields of each endpoint, by path."""

SALTED: Final = frozenset((EMBEDDINGS_PATH, *RERANK_PATHS, *SCORE_PATHS))
"""Endpoints whose engine has a cache of prefixes, so that a tenant's requests need its salt."""

_NEEDED: Final[Mapping[bytes, tuple[str, ...]]] = MappingProxyType(
    {
        TOKENIZE_PATH: ("prompt", "messages"),
        DETOKENIZE_PATH: ("tokens",),
        COUNT_TOKENS_PATH: ("messages",),
        EMBEDDINGS_PATH: ("input", "messages"),
        **dict.fromkeys(RERANK_PATHS, ("query",)),
    }
)
"""The field that an endpoint needs; with two exactly one of them. vLLM checks the pairs of a score."""


def check_passed(path: bytes, body: Mapping[str, Any], allowed: Collection[str], *, allow_media: bool) -> None:
    """Checks the fields of such a request. Raises RequestError. allowed: further names that the pool lets pass."""
    check_fields(body, PASSED[path], allowed)
    needed = _NEEDED.get(path, ())
    given = [name for name in needed if body.get(name) is not None]
    if needed and not given:
        raise bad_field(needed[0], "it is missing.", code="missing_field")
    if len(given) > 1:
        raise bad_field(given[1], f"it cannot be sent beside {given[0]}.", code="invalid_type")
    if body.get("messages") is not None and path != COUNT_TOKENS_PATH:
        check_messages(body["messages"], allow_media=allow_media)
    check_template_options(body.get("chat_template_kwargs"))
    if body.get("input") is not None:
        check_prompt(body["input"], "input", MAX_INPUTS)
