"""Counts the values in a JSON body before it is parsed.

A parser makes an object of 60 to 200 bytes of each `{}`, so a body of 16 MB could take a gigabyte and a second. The
brackets and commas outside of strings show the number of values. The C library's searches count them, window by window,
with a pause between two windows. The count stops at the bound.
"""

from __future__ import annotations

import re
from typing import Final

from plumage_router.http.errors import RequestError
from plumage_router.http.time_slicing import Steps

__all__ = ["MAX_CONTAINERS", "MAX_VALUES", "check_bounds"]

MAX_CONTAINERS: Final = 32_768  # objects and lists
MAX_VALUES: Final = 524_288  # values in all; a prompt of token ids has one for each
WINDOW: Final = 1 << 18  # bytes
_BACKSLASHES = re.compile(rb"\\+")


def check_bounds(raw: bytes) -> Steps[None]:
    """Raises RequestError 400 for too many values. Does not check that `raw` is JSON."""
    containers = values = 0
    inside = False  # inside a string
    start, end = 0, len(raw)
    while start < end:
        stop = _window_end(raw, start, min(end, start + WINDOW))
        part = raw[start:stop]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = part.count(b'"')
        values += quotes // 4  # half of the strings may be keys
        if values > MAX_VALUES:
            raise _too_many()
        outside = b"".join(part.split(b'"')[inside::2])
        inside ^= bool(quotes & 1)
        containers += outside.count(b"{") + outside.count(b"[")
        values += outside.count(b",") - quotes // 4
        if containers > MAX_CONTAINERS or values > MAX_VALUES:
            raise _too_many()
        start = stop
        yield


def _window_end(raw: bytes, start: int, stop: int) -> int:
    """Ends no window within an escape: a run of backslashes stays with the character that follows."""
    if raw[stop - 1] != 0x5C:
        return stop
    run = len(raw[start:stop]) - len(raw[start:stop].rstrip(b"\\"))
    if stop - run > start:
        return stop - run
    found = _BACKSLASHES.match(raw, start)
    assert found is not None
    return min(len(raw), found.end() + 1)


def _too_many() -> RequestError:
    message = f"The body contains more than {MAX_CONTAINERS:,} objects and lists, or more than {MAX_VALUES:,} values."
    return RequestError(400, message, code="too_many")
