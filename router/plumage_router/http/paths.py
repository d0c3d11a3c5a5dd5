"""The paths that are served, path classes for metric labels and logs, and answers for APIs that are not served.

A label never contains a client's own text: otherwise any client could fill the metrics store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from plumage_router.http.errors import error_object

__all__ = [
    "CHAT_PATH",
    "COMPLETION_PATH",
    "COUNT_TOKENS_PATH",
    "DETOKENIZE_PATH",
    "EMBEDDINGS_PATH",
    "ENGINE_PATHS",
    "FORM_PATHS",
    "MESSAGES_PATH",
    "PROBES",
    "RERANK_PATHS",
    "RESPONSES_PATH",
    "SCORE_PATHS",
    "TOKENIZE_PATH",
    "TRANSCRIPTIONS_PATH",
    "TRANSLATIONS_PATH",
    "UNSERVED",
    "WITHOUT_DEVICE",
    "ResponseCall",
    "path_class",
    "response_call",
    "unserved_body",
]

CHAT_PATH: Final = b"/v1/chat/completions"
COMPLETION_PATH: Final = b"/v1/completions"
MESSAGES_PATH: Final = b"/v1/messages"
COUNT_TOKENS_PATH: Final = b"/v1/messages/count_tokens"
RESPONSES_PATH: Final = b"/v1/responses"
TOKENIZE_PATH: Final = b"/tokenize"
DETOKENIZE_PATH: Final = b"/detokenize"
EMBEDDINGS_PATH: Final = b"/v1/embeddings"
RERANK_PATHS: Final = (b"/v1/rerank", b"/v2/rerank", b"/rerank")
SCORE_PATHS: Final = (b"/v1/score", b"/score")
TRANSCRIPTIONS_PATH: Final = b"/v1/audio/transcriptions"
TRANSLATIONS_PATH: Final = b"/v1/audio/translations"

FORM_PATHS: Final = frozenset((TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH))
"""Their body is a form (multipart/form-data)."""

ENGINE_PATHS: Final = frozenset(
    (
        CHAT_PATH, COMPLETION_PATH, MESSAGES_PATH, COUNT_TOKENS_PATH, RESPONSES_PATH, TOKENIZE_PATH, DETOKENIZE_PATH,
        EMBEDDINGS_PATH, *RERANK_PATHS, *SCORE_PATHS, *FORM_PATHS,
    )
)  # fmt: skip
"""What an engine answers: POST with a JSON object, or with a form."""

WITHOUT_DEVICE: Final = frozenset((TOKENIZE_PATH, DETOKENIZE_PATH, COUNT_TOKENS_PATH))
"""A server answers these without its device."""

PROBES: Final = frozenset(("/health", "/healthz", "/metrics"))

UNSERVED: Final[Mapping[str, str]] = {
    "/v1/responses": "Of a response, GET /v1/responses/ID and POST /v1/responses/ID/cancel are served.",
    "/v1/audio": "Of audio, POST /v1/audio/transcriptions and POST /v1/audio/translations are served.",
    "/v1/messages/batches": "Message batches are not served. Send each message to POST /v1/messages instead.",
}
"""What to use instead, by path; a path below one of these gets the same answer."""

_CLASSES: Final = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/embeddings",
    "/v1/audio", "/v1/images", "/v1/files", "/v1/batches", "/v1/moderations", "/v1/rerank", "/v1/score",
    "/v2/rerank", "/rerank", "/score", "/tokenize", "/detokenize", "/v1/plumage", "/plumage/v1", "/health",
    "/healthz", "/metrics", "/v1",
)  # fmt: skip

_BY_ID: Final = re.compile(rb"/v1/responses/([^/?#]{1,512})(/cancel)?(?:\?(.*))?", re.S)
_TRUE: Final = ("true", "1", "yes", "on", "t", "y")  # as pydantic reads a flag
_INDEX: Final = re.compile(r"\d{1,9}", re.A)


class ResponseCall(NamedTuple):
    """A request that reads or cancels a stored response. name: the response's id. path: the target that the engine
    gets."""

    method: bytes
    name: str
    path: bytes
    stream: bool


def response_call(method: bytes, target: bytes) -> ResponseCall | None:
    """None for any other request. Of the query only what vLLM reads is sent on: `stream` and `starting_after`."""
    found = _BY_ID.fullmatch(target)
    if found is None or method != (b"POST" if found[2] else b"GET"):
        return None
    name = unquote(found[1].decode("latin-1"))
    path = b"/v1/responses/%b%b" % (quote(name, safe="").encode(), found[2] or b"")
    query = {} if found[2] else parse_qs((found[3] or b"").decode("latin-1"))
    stream = query.get("stream", [""])[-1].lower() in _TRUE
    after = query.get("starting_after", [""])[-1]
    if stream:
        path += b"?stream=true" + (b"&starting_after=" + after.encode() if _INDEX.fullmatch(after) else b"")
    return ResponseCall(method, name, path, stream)


def path_class(path: str) -> str:
    """Returns the longest known prefix of a path, `other` without one."""
    found = (known for known in _CLASSES if path == known or path.startswith(f"{known}/"))
    return max(found, key=len, default="other")


def unserved_body(path: str) -> bytes | None:
    """Returns the 404 body for an API that is not served, in the format of its clients; None for any other path."""
    known = max((api for api in UNSERVED if path == api or path.startswith(f"{api}/")), key=len, default=None)
    if known is None:
        return None
    return error_object(404, UNSERVED[known], code="not_served", target=path.encode())
