"""HTTP/1.1 as bytes: the heads of responses, chunk framing, the date; no sockets here.

Names are lower-case throughout. A head is built once per (status, content type) and kept, since the completion path
sends the same few again and again.
"""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

__all__ = [
    "CONTINUE",
    "JSON",
    "LAST_CHUNK",
    "chunk",
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
    """The Date header's line for a wall-clock time."""
    return b"date: " + formatdate(now, usegmt=True).encode() + b"\r\n"


def origin_form(target: bytes) -> bytes:
    """A request target without its scheme and host, where it has them (RFC 9112 §3.2.2): `http://h/x` is `/x`."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    ends = [at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0]
    path = rest[min(ends) :] if ends else b""
    return path if path[:1] == b"/" else b"/" + path


def is_coded(codings: bytes) -> bool:
    """Does a Transfer-Encoding name a coding below the chunks? Where `chunked` is not the last one, the parser refuses
    the message."""
    below, _, last = codings.rpartition(b",")
    return bool(below) and last.strip().lower() == b"chunked"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty, for an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(
    status: int, headers: bytes, date: bytes, *, length: int | None, keep_alive: bool, chunked: bool = False
) -> bytes:
    """A whole head. `headers` are ready lines. Neither length nor chunked: the body ends with the connection."""
    if length is not None:
        framing = b"content-length: %d\r\n" % length
    else:
        framing = b"transfer-encoding: chunked\r\n" if chunked else b""
    connection = b"" if keep_alive else b"connection: close\r\n"
    return b"%b%b%b%b%b\r\n" % (status_line(status), date, headers, framing, connection)
