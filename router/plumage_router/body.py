"""A request's JSON: read by the C parser, refused when a key is given twice, changed without being written anew.

`orjson` keeps the last of two equal keys and says nothing, while an engine's parser might keep the first: the two would
then see different requests. Reading a body the slow way to find out costs more than all the rest, so:
- a body that comes out as it went in, when written again, lost no key. OpenAI's clients send just this compact form.
- else, a dropped key takes its quotes with it: as many quotes in as out, no key was lost. (A quote inside a string is
  written `\\"` on both sides; only the spelling `\\u0022` adds one.)
- what is left is read the slow, exact way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from plumage_router.errors import RequestError, bad_request

__all__ = ["parse_body", "splice"]


def parse_body(raw: bytes) -> dict[str, Any]:
    """The object in a body; RequestError 400 when it is anything else, or has a key twice, at any depth."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _malformed(raw, error) from None
    if type(body) is not dict:
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    try:
        written = orjson.dumps(body)
    except TypeError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    if written != raw and (written.count(b'"') != raw.count(b'"') or _spells_quotes(raw)):
        _refuse_duplicates(raw)
    return body


def splice(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """The body with further fields in front. None of them may be in it already."""
    start = raw.index(b"{") + 1
    return b"%b%b,%b" % (raw[:start], orjson.dumps(fields)[1:-1], raw[start:])


def _spells_quotes(raw: bytes) -> bool:
    return b"\\" in raw and b"\\u0022" in raw


def _malformed(raw: bytes, error: orjson.JSONDecodeError) -> RequestError:
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return bad_request(f"The body is not UTF-8: byte {wrong.start} can't be read.", code="invalid_json")
    return bad_request(f"The body is not JSON: {error.msg}, line {error.lineno}.", code="invalid_json")


def _refuse_duplicates(raw: bytes) -> None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen = Counter(name for name, _ in pairs)
            twice = next(name for name, times in seen.items() if times > 1)
            raise RequestError(400, f"The key {twice[:64]!r} is given twice.", code="duplicate_key", param=twice[:64])
        return found

    try:
        json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise bad_request("The body is not JSON.", code="invalid_json") from None
