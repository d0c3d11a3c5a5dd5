"""A request's JSON: read by the C parser, refused when a key is given twice, changed without being written anew.

`orjson` keeps the last of two equal keys and says nothing, while an engine's parser might keep the first: the two would
then see different requests. A key that was dropped takes its quotes with it, so quotes are counted: those of the body,
and those of the body written again. A quote inside a string is written `\\"` on both sides; the spelling `\\u0022`
is counted as the quote that it becomes. The count is exact, and all of it is done by C code.

A large body is read in pieces (`pieces.py`), after its values were counted (`bounds.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from plumage_router.bounds import within_bounds
from plumage_router.errors import RequestError, bad_request
from plumage_router.pieces import LARGE, Steps, at_once

__all__ = ["parse_body", "parse_steps", "splice"]

NAMED: Final = 65_536  # bytes; of a longer body it is not said which key is given twice, for that takes a slow parser


def parse_body(raw: bytes) -> dict[str, Any]:
    """The object in a body; RequestError 400 when it is anything else, or has a key twice, at any depth."""
    return at_once(parse_steps(raw))


def parse_steps(raw: bytes) -> Steps[dict[str, Any]]:
    """`parse_body` in pieces."""
    if len(raw) > LARGE:
        yield from within_bounds(raw)
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
        raise _given_twice(raw)
    return body


def splice(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """The body with further fields in front. None of them may be in it already."""
    start = raw.index(b"{") + 1
    return b"%b%b,%b" % (raw[:start], orjson.dumps(fields)[1:-1], raw[start:])


def _quotes(raw: bytes) -> int:
    """As many as a writer would put that escapes a quote by a backslash."""
    quotes = raw.count(b'"')
    if b"\\u0022" in raw:
        quotes += raw.replace(b"\\\\", b"").count(b"\\u0022")
    return quotes


def _malformed(raw: bytes, error: orjson.JSONDecodeError) -> RequestError:
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return bad_request(f"The body is not UTF-8: byte {wrong.start} can't be read.", code="invalid_json")
    return bad_request(f"The body is not JSON: {error.msg}, line {error.lineno}.", code="invalid_json")


def _given_twice(raw: bytes) -> RequestError:
    name = _first_twice(raw) if len(raw) <= NAMED else None
    if name is None:
        return RequestError(400, "A key is given twice.", code="duplicate_key")
    return RequestError(400, f"The key {name!r} is given twice.", code="duplicate_key", param=name)


def _first_twice(raw: bytes) -> str | None:
    """Up to 64 characters of the first key that an object has twice."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if not found and len(dict(pairs)) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            found.append(next(name for name, times in counts.items() if times > 1)[:64])
        return dict(pairs)

    try:
        json.loads(raw, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    return found[0] if found else None
