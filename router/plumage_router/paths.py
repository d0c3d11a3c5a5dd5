"""Classes of paths, for labels and logs; and what is said of an API that is not served. Pure.

A label must not hold what clients send, or anybody could fill the metrics' store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from plumage_router.errors import error_object

__all__ = ["PROBES", "UNSERVED", "path_class", "unserved_body"]

PROBES: Final = frozenset(("/health", "/healthz", "/metrics"))

_CHAT: Final = "Send POST /v1/chat/completions instead"
UNSERVED: Final[Mapping[str, str]] = {
    "/v1/responses": f"The Responses API is not served. {_CHAT}: most clients have a switch for it.",
    "/v1/messages": f"The Anthropic Messages API is not served. {_CHAT}, with an OpenAI client.",
    "/v1/messages/count_tokens": f"The Anthropic Messages API is not served. {_CHAT}: its usage counts the tokens.",
    "/v1/embeddings": "Embeddings are not served. This router serves chat and text completions.",
}
"""What is served instead, by path; a path below one of these gets the same answer."""

_CLASSES: Final = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses", "/v1/messages", "/v1/embeddings",
    "/v1/audio", "/v1/images", "/v1/files", "/v1/batches", "/v1/moderations", "/v1/rerank", "/v1/plumage",
    "/plumage/v1", "/health", "/healthz", "/metrics", "/v1",
)  # fmt: skip


def path_class(path: str) -> str:
    """The longest known beginning of a path, `other` where there is none."""
    found = (known for known in _CLASSES if path == known or path.startswith(f"{known}/"))
    return max(found, key=len, default="other")


def unserved_body(path: str) -> bytes | None:
    """The body of the 404 for an API that is not served, in the form of its own clients; None for any other path."""
    known = max((api for api in UNSERVED if path == api or path.startswith(f"{api}/")), key=len, default=None)
    if known is None:
        return None
    if known.startswith("/v1/messages"):
        return orjson.dumps({"type": "error", "error": {"type": "not_found_error", "message": UNSERVED[known]}})
    return error_object(404, UNSERVED[known], code="not_served")
