"""Parses a request's JSON body, refuses duplicate keys, and adds fields without serializing the body again.

`orjson` silently keeps the last of two equal keys. An engine's parser may keep the first, so the two would see
different requests. A dropped key loses its quotes: so the quotes of the body are compared with those of the body
serialized again. A quote inside a string is written `\\"` on both sides; the spelling `\\u0022` counts as the quote
that it becomes. The count is exact, and C code does all of it.

A large body is parsed in slices (`http/time_slicing.py`), after its values were counted (`json_bounds.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from plumage_router.http.errors import RequestError, bad_request
from plumage_router.http.time_slicing import LARGE, Steps, run_now
from plumage_router.request.json_bounds import check_bounds

__all__ = ["parse_body", "parse_steps", "splice"]

_NAMED: Final = 65_536  # bytes; a longer body is not searched for the duplicate key, since that parser is slow


def parse_body(raw: bytes) -> dict[str, Any]:
    """Returns the object in a body. Raises RequestError 400 for anything else, or for a duplicate key at any depth."""
    return run_now(parse_steps(raw))


def parse_steps(raw: bytes) -> Steps[dict[str, Any]]:
    """`parse_body` in slices."""
    if len(raw) > LARGE:
        yield from check_bounds(raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _malformed(raw, error) from None
    if type(body) is not dict:
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    yield
    try:
        written = orjson.dumps(body)
    except TypeError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    if written == raw:
        return body
    yield
    if written.count(b'"') != _quotes(raw):
        raise _duplicate_key(raw)
    return body


def splice(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """Returns the body with further fields in front. The body must not contain any of them."""
    start = raw.index(b"{") + 1
    return b"%b%b,%b" % (raw[:start], orjson.dumps(fields)[1:-1], raw[start:])


def _quotes(raw: bytes) -> int:
    """The quotes that a serializer writes which escapes a quote by a backslash."""
    quotes = raw.count(b'"')
    if b"\\u0022" in raw:
        quotes += raw.replace(b"\\\\", b"").count(b"\\u0022")
    return quotes


def _malformed(raw: bytes, error: orjson.JSONDecodeError) -> RequestError:
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return bad_request(f"The body is not UTF-8: byte {wrong.start} is invalid.", code="invalid_json")
    return bad_request(f"The body is not JSON: {error.msg}, line {error.lineno}.", code="invalid_json")


def _duplicate_key(raw: bytes) -> RequestError:
    name = _first_duplicate(raw) if len(raw) <= _NAMED else None
    if name is None:
        return RequestError(400, "A key is given twice.", code="duplicate_key")
    return RequestError(400, f"The key {name!r} is given twice.", code="duplicate_key", param=name)


def _first_duplicate(raw: bytes) -> str | None:
    """Returns up to 64 characters of the first duplicate key."""
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if not found and len(dict(pairs)) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            found.append(next(name for name, times in counts.items() if times > 1)[:64])
        return dict(pairs)

    try:
        json.loads(raw, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return None
    return found[0] if found else None
