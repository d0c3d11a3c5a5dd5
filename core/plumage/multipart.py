"""Finds the parts of a multipart/form-data body (RFC 7578), strictly and without copying them. Pure.

A client's form is checked here, and then read again by an engine's own parser (python-multipart in vLLM). A form that
the two read differently would carry unchecked fields to the engine. So whatever parsers may read differently is an
error: preambles, folded or unknown headers, escapes in parameters, parts that are encoded, text after the end. Tests
compare this module with python-multipart.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple

from plumage.errors import PlumageError

__all__ = ["MAX_PARTS", "FormError", "Part", "boundary_of", "content_type", "find_parts"]

MAX_PARTS: Final = 64
_MAX_HEAD: Final = 4096  # bytes of the headers of one part
_SLICE: Final = 1 << 20  # bytes that are searched between two yields

_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}")  # RFC 2046 §5.1.1, without spaces
_TYPE: Final = re.compile(rb"multipart/form-data((?:[ \t]*;[ \t]*[A-Za-z]+=(?:\"[^\"\\]*\"|[^\s;\"\\]+))*)[ \t]*", re.I)
_TYPE_PARAM: Final = re.compile(rb";[ \t]*([A-Za-z]+)=(?:\"([^\"\\]*)\"|([^\s;\"\\]+))")
_DISPOSITION: Final = re.compile(
    rb"form-data((?:[ \t]*;[ \t]*(?:(?:name|filename)=(?:\"[^\"\\\r\n]*\"|[0-9A-Za-z_.\[\]-]+)"
    rb"|filename\*=[Uu][Tt][Ff]-8''[0-9A-Za-z%._~!$&+^`{}|-]*))+)[ \t]*"
)
_PARAM: Final = re.compile(rb";[ \t]*(name|filename\*?)=(?:\"([^\"]*)\"|([^\s;]*))")
_NAME: Final = re.compile(rb"[0-9A-Za-z_.\[\]-]{1,64}")
_ENCODINGS: Final = (b"binary", b"8bit", b"7bit")  # those that change nothing
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class FormError(PlumageError):
    """The form cannot be read, or two parsers may read it differently. The message has nothing of the form's values."""


class Part(NamedTuple):
    """One field. is_file: it has a file name. The value is `body[start:end]`."""

    name: str
    is_file: bool
    start: int
    end: int


def boundary_of(header: bytes) -> bytes:
    """The boundary in a Content-Type header. Raises FormError without one, and for parameters that change how text is
    read."""
    found = _TYPE.fullmatch(header.strip())
    if found is None:
        raise FormError("Content-Type must be multipart/form-data; boundary=…")
    params: dict[bytes, bytes] = {}
    for name, quoted, plain in _TYPE_PARAM.findall(found[1]):
        if name.lower() in params:
            raise FormError("Content-Type names a parameter twice")
        params[name.lower()] = quoted or plain
    boundary = params.pop(b"boundary", b"")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise FormError("Content-Type needs a boundary of 1 to 70 plain characters")
    if params.pop(b"charset", b"utf-8").lower() != b"utf-8" or params:
        raise FormError("Content-Type may have no parameters but boundary and charset=utf-8")
    return boundary


def content_type(boundary: bytes) -> bytes:
    """The header's value for a form with this boundary."""
    return b'multipart/form-data; boundary="%b"' % boundary


def find_parts(body: bytes, boundary: bytes) -> Generator[None, None, list[Part]]:
    """Returns the parts in their order. Yields after each MiB, so that a caller can do other work meanwhile.

    Raises FormError for more than `MAX_PARTS`, and for anything but the form that RFC 7578 describes.
    """
    line = b"--" + boundary
    if not body.startswith(line + b"\r\n"):
        raise FormError("the body must begin with the boundary of Content-Type")
    parts: list[Part] = []
    at = len(line) + 2
    while True:
        if len(parts) == MAX_PARTS:
            raise FormError(f"a form may have at most {MAX_PARTS} fields")
        name, is_file, start = _read_head(body, at)
        end = yield from _find(body, b"\r\n" + line, start)
        if end < 0:
            raise FormError("the body must end with the boundary and two dashes")
        parts.append(Part(name, is_file, start, end))
        at = end + 2 + len(line)
        mark, at = body[at : at + 2], at + 2
        if mark == b"--":
            if body[at:] not in (b"", b"\r\n"):
                raise FormError("nothing may follow the last boundary")
            return parts
        if mark != b"\r\n":
            raise FormError("a boundary must stand on a line of its own")


def _find(body: bytes, wanted: bytes, start: int) -> Generator[None, None, int]:
    """`bytes.find` in slices; -1 without a match."""
    while start < len(body):
        found = body.find(wanted, start, start + _SLICE + len(wanted))
        if found >= 0:
            return found
        start += _SLICE
        yield
    return -1


def _read_head(body: bytes, start: int) -> tuple[str, bool, int]:
    """The name of the part whose headers begin at `start`, whether it is a file, and where its value begins."""
    end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD)
    if end < 0:
        raise FormError(f"a field needs headers of at most {_MAX_HEAD} bytes, and an empty line after them")
    headers: dict[bytes, bytes] = {}
    for line in body[start:end].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in headers or _VALUE.fullmatch(value) is None:
            raise FormError("a field has a malformed or repeated header")
        headers[name] = value.strip(b" \t")
    disposition = _DISPOSITION.fullmatch(headers.pop(b"content-disposition", b""))
    if disposition is None:
        raise FormError('each field needs Content-Disposition: form-data; name="…", without escapes')
    if headers.pop(b"content-transfer-encoding", b"binary").lower() not in _ENCODINGS:
        raise FormError("fields must not be encoded: send Content-Transfer-Encoding: binary, or leave it out")
    if headers.keys() - {b"content-type", b"content-length"}:
        raise FormError("fields may have no other headers than Content-Disposition and Content-Type")
    return *_name_of(disposition[1]), end + 4


def _name_of(parameters: bytes) -> tuple[str, bool]:
    found: dict[bytes, bytes] = {}
    for name, quoted, plain in _PARAM.findall(parameters):
        if name in found:
            raise FormError("Content-Disposition names a parameter twice")
        found[name] = quoted or plain
    name = found.pop(b"name", b"")
    if _NAME.fullmatch(name) is None:
        raise FormError("a field's name must have 1 to 64 letters, digits, dots, dashes, underscores or brackets")
    if b"filename*" in found and b"filename" not in found:
        raise FormError("a file needs the parameter filename: some parsers ignore filename*")
    return name.decode("ascii"), b"filename" in found
