"""Reads a request's body: checks its type, parses JSON, refuses duplicate keys, and adds fields to the bytes.

`orjson` silently keeps the last of two equal keys. An engine's parser may keep the first, so the two would see
different requests. A small body is serialized again: if that gives its bytes, no key was dropped. Any other body has
one colon outside of strings for each key. So the keys of its objects are counted, and compared.

A large body is parsed in slices (`http/time_slicing.py`), after `check_bounds` counted its values, keys, backslashes
and bytes outside of strings. One that is long texts and little else is parsed at once, up to twice that size: its few
strings show that no parser needs long for it (`is_light`).

A parser makes an object of 60 to 200 bytes of each `{}`, so a body of 16 MB could take a gigabyte and a second. The
brackets and commas outside of strings show the number of values, and the colons that of keys. They are counted window
by window, with a pause between two windows, in the parts in which the body arrived. The count stops at the bound.

A parser cannot pause. 500,000 keys in one object took it 175 to 220 ms, and 7.7 million escapes 57 to 63 ms. 500,000
numbers took 25 to 55 ms. So keys, backslashes and the bytes outside of strings are bounded too.

A window with few quotes, as in a long text, is read from quote to quote: to find one byte takes 0.02 ns a byte, to
count one 0.3 ns, and to find two 0.9 ns. A window with many quotes is split at them in C.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from plumage.multipart import FormError, boundary_of
from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.errors import RequestError, bad_request
from plumage_router.http.paths import FORM_PATHS
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import LARGE, Steps, run_now
from plumage_router.http.wire import JSON

__all__ = [
    "LIGHT", "MAX_BACKSLASHES", "MAX_CONTAINERS", "MAX_KEYS", "MAX_UNQUOTED", "MAX_VALUES", "MOST_VALUES", "Counted",
    "check_bounds", "check_media_type", "is_light", "most_values", "parse_body", "parse_steps", "splice",
    "splice_json",
]  # fmt: skip

_MAX_DEPTH: Final = 254  # as many levels as `orjson` serializes
_VISITED: Final = 16_384  # values between two slices
_VIEWED: Final = 32_768  # bytes, from which on a view costs less than a copy
LIGHT: Final = 131_072  # bytes: a longer body is always read in slices
_LIGHT_UNQUOTED: Final = 8192  # bytes outside of strings: at most so many values, and half as many containers
_NAMED: Final = 65_536  # bytes; a longer body is not searched for the duplicate key, since that parser is slow
MAX_CONTAINERS: Final = 32_768  # objects and lists
MAX_VALUES: Final = 262_144  # values in all; a prompt of token ids has one for each
MOST_VALUES: Final = 524_288  # of a model with a longer context (`most_values`)
MAX_KEYS: Final = 131_072  # of all objects together, so of each
MAX_BACKSLASHES: Final = 2_097_152  # a text of as many characters outside of ASCII, each escaped
MAX_UNQUOTED: Final = 6_291_456  # bytes outside of strings: the most token ids, with 12 bytes for each
WINDOW: Final = 1 << 18  # bytes
WALKED: Final = 256  # bytes for each quote, in the mean, from which on `_walk` is faster than `_split`
_BACKSLASH: Final = 0x5C
_OTHER: Final = 65_536  # values beside a prompt of token ids


def check_media_type(request: Request) -> bytes:
    """Raises RequestError for a body of another type than the path takes. Returns the boundary of a form; empty for
    JSON."""
    headers = request.headers
    kind = headers.get(b"content-type")
    boundary = b""
    if request.target.partition(b"?")[0] in FORM_PATHS:
        boundary = _boundary(kind)
    elif kind is not None and kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        raise RequestError(415, "The body must be application/json.", code="media_type")
    if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
        raise RequestError(415, "Compressed bodies are not accepted.", code="content_encoding")
    if not request.size:
        raise bad_request("The body is empty.", code="invalid_form" if boundary else "invalid_json")
    return boundary


def _boundary(kind: bytes | None) -> bytes:
    if kind is None or kind.partition(b";")[0].strip().lower() != b"multipart/form-data":
        raise RequestError(415, "The body must be a form: multipart/form-data; boundary=…", code="media_type")
    try:
        return boundary_of(kind)
    except FormError as error:
        raise bad_request(f"The form cannot be read: {error}.", code="invalid_form") from None


def parse_body(raw: bytes) -> dict[str, Any]:
    """Returns the object in a body. Raises RequestError 400 for anything else, or for a duplicate key at any depth."""
    return run_now(parse_steps(BodyBuffer(raw)))


def parse_steps(data: BodyBuffer, most: int = MAX_VALUES) -> Steps[dict[str, Any]]:
    """`parse_body` in slices. most: values that the body may have."""
    counted = data.counted
    large = counted is None and len(data) > LARGE
    if large:
        counted = yield from check_bounds(data.parts, most)
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
    if counted is None:
        if _is_written_as(body, raw):
            return body
        counted = yield from check_bounds(data.parts, most)
    containers, keys = counted
    if (yield from _keys(body, containers)) != keys:
        raise _duplicate_key(raw)
    return body


def is_light(data: BodyBuffer) -> bool:
    """Whether a body above `LARGE` is read as fast as a smaller one: it is long texts and little else.

    Keeps what was counted in `data.counted`. Such a body is within all bounds of `check_bounds`.
    """
    if len(data) > LIGHT:
        return False
    raw = data.whole()
    found = _walk(raw, 0, len(raw), inside=False) if raw[:1] == b"{" else None
    if found is None or found.unquoted > _LIGHT_UNQUOTED:
        return False
    data.counted = (found.containers, found.colons)
    return True


def splice(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """Returns the body with further fields in front. The body must not contain any of them."""
    return splice_json(raw, orjson.dumps(fields)[1:-1])


def splice_json(raw: bytes, fields: bytes) -> bytes:
    """`splice` with fields that are JSON already, without the braces around them."""
    start = raw.index(b"{") + 1
    rest = memoryview(raw)[start:] if len(raw) > _VIEWED else raw[start:]
    return b"".join((raw[:start], fields, b",", rest))


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


class Counted(NamedTuple):
    """What a body contains. containers: objects and lists. keys: of all objects, keys given twice included."""

    containers: int
    keys: int


class _Counts(NamedTuple):
    """Of one window. unquoted: bytes outside of strings. inside: its end is inside a string."""

    unquoted: int
    containers: int
    commas: int
    colons: int
    inside: bool


def most_values(context: int | None) -> int:
    """The values that a body may have for a model with this context, in tokens."""
    return min(MOST_VALUES, max(MAX_VALUES, (context or 0) + _OTHER))


def check_bounds(parts: Iterable[bytes | bytearray], most: int = MAX_VALUES) -> Steps[Counted]:
    """Raises RequestError 400 for more than `most` values, or for too much of something else. Does not check that the
    parts together are JSON."""
    unquoted = containers = values = keys = backslashes = 0
    inside = False  # inside a string
    for part, start, stop in _windows(parts):
        if part.find(b"\\", start, stop) >= 0:
            backslashes += part.count(b"\\", start, stop)
            if backslashes > MAX_BACKSLASHES:
                raise _too_many(f"{MAX_BACKSLASHES:,} backslashes")
        found = _walk(part, start, stop, inside) or _split(part[start:stop], inside, most, values)
        unquoted += found.unquoted
        containers += found.containers
        values += found.commas
        keys += found.colons
        if containers > MAX_CONTAINERS or values > most:
            raise _too_many_values(most)
        if keys > MAX_KEYS:
            raise _too_many(f"{MAX_KEYS:,} keys")
        if unquoted > MAX_UNQUOTED:
            raise _too_many(f"{MAX_UNQUOTED:,} bytes of numbers and spaces outside of strings")
        inside = found.inside
        yield
    return Counted(containers, keys)


def _windows(parts: Iterable[bytes | bytearray]) -> Iterator[tuple[bytes | bytearray, int, int]]:
    """Each part with the start and end of each of its windows. No window ends within an escape, so a backslash that
    begins one at the end of a part goes to the next part."""
    left = b""
    for arrived in parts:
        part = left + arrived if left else arrived
        left = b""
        start, end = 0, len(part)
        while start < end:
            stop = _window_end(part, start, min(end, start + WINDOW))
            if stop == end and part[-1] == _BACKSLASH and not _is_plain(part[start:stop]):
                left = b"\\"
                stop -= 1
            if start < stop:
                yield part, start, stop
            start = stop + len(left)
    if left:
        yield left, 0, 1


def _walk(raw: bytes | bytearray, start: int, stop: int, inside: bool) -> _Counts | None:
    """Counts from quote to quote; None where there are too many for that."""
    found: list[bytes | bytearray] = []
    at = start
    for _ in range((stop - start) // WALKED + 4):
        quote = raw.find(b'"', at, stop)
        if not inside:
            found.append(raw[at : quote if quote >= 0 else stop])
        if quote < 0:
            outside = b"".join(found)
            containers = outside.count(b"{") + outside.count(b"[")
            return _Counts(len(outside), containers, outside.count(b","), outside.count(b":"), inside)
        if not inside or raw[quote - 1] != _BACKSLASH or _is_plain(raw[at:quote]):
            inside = not inside
        at = quote + 1
    return None


def _is_plain(before: bytes | bytearray) -> bool:
    """Whether the quote behind a part of a string is its end."""
    return not (len(before) - len(before.rstrip(b"\\"))) & 1


def _split(part: bytes | bytearray, inside: bool, most: int, before: int = 0) -> _Counts:
    """Counts all at once. Raises RequestError for more than `most` values.

    before: the values of earlier windows.
    """
    if b"\\" in part:
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = part.count(b'"')
    if before + quotes // 4 > most:  # half of the strings may be keys
        raise _too_many_values(most)
    outside = b"".join(part.split(b'"')[inside::2])
    containers = outside.count(b"{") + outside.count(b"[")
    return _Counts(len(outside), containers, outside.count(b","), outside.count(b":"), inside ^ bool(quotes & 1))


def _window_end(raw: bytes | bytearray, start: int, stop: int) -> int:
    """Ends no window within an escape: a run of backslashes is cut at an even number of them."""
    if raw[stop - 1] != _BACKSLASH:
        return stop
    part = raw[start:stop]
    if _is_plain(part):
        return stop
    return stop - 1 if len(part) > 1 else min(len(raw), stop + 1)


def _too_many_values(most: int) -> RequestError:
    return _too_many(f"{MAX_CONTAINERS:,} objects and lists, or more than {most:,} values")


def _too_many(most: str) -> RequestError:
    return RequestError(400, f"The body contains more than {most}.", code="too_many")
