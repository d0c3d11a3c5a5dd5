"""The head of a request that a proxy asks about: as the client sent it, and as an engine gets it.

An engine's own key replaces the client's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plumage_router.http.errors import RequestError, bad_request
from plumage_router.http.request import SINGLE_HEADERS, Request

__all__ = ["asks_for_models", "engine_headers", "read_head"]

_MAX_HEADERS: Final = 128  # of a request; a proxy adds some to the client's
_REMOVED: Final[tuple[bytes, ...]] = (
    b"authorization", b"cookie", b"proxy-authorization", b"x-api-key", b"x-data-parallel-rank", b"x-plumage-admin-key",
    b"x-plumage-class", b"x-plumage-explain",
)  # fmt: skip
"""Headers of a client that no engine gets."""
_MODELS: Final = b"/v1/models"
_NO_NAMES: Final = frozenset((b"", b".", b".."))  # segments that a proxy before the engine may resolve


def read_head(request: Request, headers: Sequence[tuple[bytes, bytes]], most_bytes: int) -> None:
    """Sets method, target and headers. Raises RequestError for too many, and for one that may not be repeated."""
    size = sum([len(name) + len(value) + 4 for name, value in headers])
    if len(headers) > _MAX_HEADERS or size > most_bytes:
        raise RequestError(431, "The request's headers are too large.", code="headers_too_large")
    found = request.headers
    for name, value in headers:
        if name == b":method":
            request.method = value
        elif name == b":path":
            request.target = value
        elif name == b":authority":
            found[b"host"] = value
        elif name not in found:
            found[name] = value
        elif name in SINGLE_HEADERS:
            message = f"The header {name.decode('latin-1')} is repeated."
            raise bad_request(message, code="repeated_header")
        else:
            found[name] += b", " + value


def engine_headers(
    request: Request, request_id: str, key: bytes | None, *, changed: bool, trace: bytes = b"", continues: bool = True
) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """What the proxy sets and removes: the engine gets its own key, the request's id, and none of the client's keys.

    key: of the engine. changed: the engine gets another body than the client sent. trace: its `traceparent`, where that
    is not the client's. continues: it is in the client's trace, whose `tracestate` it has too.
    """
    given, name = request.headers, request_id.encode()
    headers = [] if key is None else [(b"authorization", b"Bearer " + key)]
    if given.get(b"x-request-id") != name:
        headers.append((b"x-request-id", name))
    removed = [name for name in _REMOVED if name in given and (key is None or name != b"authorization")]
    if trace:
        headers.append((b"traceparent", trace))
        if not continues and b"tracestate" in given:
            removed.append(b"tracestate")
    if changed and b"content-length" in given:
        removed.append(b"content-length")
    return headers, removed


def asks_for_models(request: Request) -> bool:
    """Whether it asks for the list of models, or for one of them."""
    path = request.target.partition(b"?")[0]
    names_one = (
        path.startswith(_MODELS + b"/") and not _NO_NAMES.intersection(path.split(b"/")[3:]) and b"%" not in path
    )
    return request.method in (b"GET", b"HEAD") and (path == _MODELS or names_one)
