"""Parses a request's JSON body, refuses duplicate keys, and adds fields without serializing the body again.

`orjson` silently keeps the last of two equal keys. An engine's parser may keep the first, so the two would see
different requests. A small body is serialized again: if that gives its bytes, no key was dropped. Any other body has
one colon outside of strings for each key (`json_bounds.py`). So the keys of its objects are counted, and compared.

A large body is parsed in slices (`http/time_slicing.py`), after its values were counted (`json_bounds.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import orjson

from plumage_router.http.body_buffer import BodyBuffer
from plumage_router.http.errors import RequestError, bad_request
from plumage_router.http.time_slicing import LARGE, Steps, run_now
from plumage_router.request.json_bounds import MAX_VALUES, check_bounds

__all__ = ["parse_body", "parse_steps", "splice", "splice_json"]

_MAX_DEPTH: Final = 254  # as many levels as `orjson` serializes
_VISITED: Final = 16_384  # values between two slices
_NAMED: Final = 65_536  # bytes; a longer body is not searched for the duplicate key, since that parser is slow


def parse_body(raw: bytes) -> dict[str, Any]:
    """Returns the object in a body. Raises RequestError 400 for anything else, or for a duplicate key at any depth."""
    return run_now(parse_steps(BodyBuffer(raw)))


def parse_steps(data: BodyBuffer, most: int = MAX_VALUES) -> Steps[dict[str, Any]]:
    """`parse_body` in slices. most: values that the body may have."""
    large = len(data) > LARGE
    counted = (yield from check_bounds(data.parts, most)) if large else None
    raw = data.whole()
    if large:
        yield
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _malformed(raw, error) from None
    if type(body) is not dict:
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    yield
    if not large and _is_written_as(body, raw):
        return body
    if counted is None:
        counted = yield from check_bounds(data.parts, most)
    if (yield from _keys(body, counted.containers)) != counted.keys:
        raise _duplicate_key(raw)
    return body


def splice(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """Returns the body with further fields in front. The body must not contain any of them."""
    return splice_json(raw, orjson.dumps(fields)[1:-1])


def splice_json(raw: bytes, fields: bytes) -> bytes:
    """`splice` with fields that are JSON already, without the braces around them."""
    start = raw.index(b"{") + 1
    return b"%b%b,%b" % (raw[:start], fields, raw[start:])


def _is_written_as(body: dict[str, Any], raw: bytes) -> bool:
    try:
        return orjson.dumps(body) == raw
    except TypeError:
        raise _too_deep() from None


def _keys(body: dict[str, Any], containers: int) -> Steps[int]:
    """Counts the keys of all objects of the body, level by level. It stops once it has found so many `containers`."""
    keys, depth, left = 0, 0, containers - 1
    level: list[Any] = [body]
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise _too_deep()
        keys += sum(len(one) for one in level if type(one) is dict)
        if left <= 0:
            return keys
        below: list[Any] = []
        visited = 0
        for one in level:
            values = iter(one.values() if type(one) is dict else one)
            for _ in range(0, len(one), _VISITED):
                part = islice(values, _VISITED)
                below += [value for value in part if type(value) is dict or type(value) is list]
                visited += min(len(one), _VISITED)
                if visited >= _VISITED:
                    visited = 0
                    yield
        left -= len(below)
        level = below
    return keys


def _too_deep() -> RequestError:
    return bad_request("The body is nested too deeply.", code="invalid_json")


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
