"""HTTP/1.1 as bytes: response heads, chunk framing, the Date header. No sockets.

Header names are lower-case everywhere. Status lines are built once, since the completion path sends the same few.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

__all__ = [
    "CONTINUE",
    "JSON",
    "LAST_CHUNK",
    "chunk",
    "header_lines",
    "is_coded",
    "origin_form",
    "response_head",
    "status_line",
    "wall_date",
]

JSON = b"application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


def status_line(status: int) -> bytes:
    return _LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def wall_date(now: float) -> bytes:
    """Returns the line of the Date header. now: seconds since the epoch."""
    return _date_of(int(now))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    """Is cached: several listeners ask in each tick, and a second has ten ticks."""
    return b"date: " + formatdate(second, usegmt=True).encode() + b"\r\n"


def origin_form(target: bytes) -> bytes:
    """Returns a request target without scheme and host (RFC 9112 §3.2.2): `http://h/x` becomes `/x`."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    ends = [at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0]
    path = rest[min(ends) :] if ends else b""
    return path if path[:1] == b"/" else b"/" + path


def is_coded(codings: bytes) -> bool:
    """Whether a Transfer-Encoding names another coding before `chunked`. The parser refuses a message whose last
    coding is not `chunked`."""
    before, _, last = codings.rpartition(b",")
    return bool(before) and last.strip().lower() == b"chunked"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body. data: not empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(
    status: int, headers: bytes, date: bytes, *, length: int | None, keep_alive: bool, chunked: bool = False
) -> bytes:
    """Returns a response head. headers: complete lines. Without length and chunked the connection ends the body."""
    if length is not None:
        framing = b"content-length: %d\r\n" % length
    else:
        framing = b"transfer-encoding: chunked\r\n" if chunked else b""
    connection = b"" if keep_alive else b"connection: close\r\n"
    return b"%b%b%b%b%b\r\n" % (status_line(status), date, headers, framing, connection)


def header_lines(names: frozenset[bytes], headers: dict[bytes, bytes]) -> bytes:
    """Returns the named headers as lines. Most requests and answers have none of them."""
    if names.isdisjoint(headers):
        return b""
    return b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in sorted(names.intersection(headers))])
