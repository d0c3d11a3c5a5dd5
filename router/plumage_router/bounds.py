"""How many values a JSON body holds, counted before it is parsed.

A parser makes an object of some 60 to 200 bytes of each `{}`, so 16 MB of them would take a gigabyte and a second. What
stands outside of strings says how many there are: brackets, and commas. Counted by the C library's searches, window by
window, with a pause between two; it ends where the bound is passed.
"""

from __future__ import annotations

import re
from typing import Final

from plumage_router.errors import RequestError
from plumage_router.pieces import Steps

__all__ = ["MOST_CONTAINERS", "MOST_VALUES", "within_bounds"]

MOST_CONTAINERS: Final = 32_768  # objects and lists
MOST_VALUES: Final = 524_288  # values in all; a prompt of token ids has one for each
WINDOW: Final = 1 << 18  # bytes
_BACKSLASHES = re.compile(rb"\\+")


def within_bounds(raw: bytes) -> Steps[None]:
    """RequestError 400 when `raw` holds more than may be. Whether it is JSON is not asked."""
    containers = values = 0
    inside = False  # a string
    start, end = 0, len(raw)
    while start < end:
        stop = _window_end(raw, start, min(end, start + WINDOW))
        part = raw[start:stop]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = part.count(b'"')
        values += quotes // 4  # of the strings, half may be keys
        if values > MOST_VALUES:
            raise _too_many()
        outside = b"".join(part.split(b'"')[inside::2])
        inside ^= bool(quotes & 1)
        containers += outside.count(b"{") + outside.count(b"[")
        values += outside.count(b",") - quotes // 4
        if containers > MOST_CONTAINERS or values > MOST_VALUES:
            raise _too_many()
        start = stop
        yield


def _window_end(raw: bytes, start: int, stop: int) -> int:
    """No window ends within an escape: a run of backslashes stays together, with what follows it."""
    if raw[stop - 1] != 0x5C:
        return stop
    run = len(raw[start:stop]) - len(raw[start:stop].rstrip(b"\\"))
    if stop - run > start:
        return stop - run
    found = _BACKSLASHES.match(raw, start)
    assert found is not None
    return min(len(raw), found.end() + 1)


def _too_many() -> RequestError:
    message = f"The body holds more than {MOST_CONTAINERS:,} objects and lists, or more than {MOST_VALUES:,} values."
    return RequestError(400, message, code="too_many")
