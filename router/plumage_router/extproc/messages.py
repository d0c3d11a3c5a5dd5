"""The messages of Envoy's external processing (envoy/service/ext_proc/v3/external_processor.proto), as bytes.

Only the fields that a picker needs are read; others are skipped, so that newer proxies are understood. Field numbers
are those of the published files; a test compares both directions with generated classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "DESTINATION",
    "BodyMode",
    "Incoming",
    "Phase",
    "body_answer",
    "header_answer",
    "immediate",
    "read",
    "trailer_answer",
]

DESTINATION: Final = b"x-gateway-destination-endpoint"
"""The header, and the key in the metadata: `IP:PORT`, with fallbacks after commas."""
_NAMESPACE: Final = b"envoy.lb"
_SERVED: Final = b"x-gateway-destination-endpoint-served"
_SUBSET_NAMESPACE: Final = b"envoy.lb.subset_hint"
_SUBSET: Final = b"x-gateway-destination-endpoint-subset"
_OVERWRITE: Final = 2  # HeaderAppendAction: OVERWRITE_IF_EXISTS_OR_ADD
_PIECE: Final = 65_536  # bytes of a body in one answer
_MOST_FIELDS: Final = 4_096  # of one message, or items of one list; bounds the time to read it


class Phase(IntEnum):
    """What a proxy sends; the numbers of the fields in a ProcessingRequest."""

    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


class BodyMode(IntEnum):
    """How the proxy sends a body (ProcessingMode.BodySendMode)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Incoming(NamedTuple):
    """One ProcessingRequest.

    phase: None for a message of a newer proxy. headers: pairs, or trailers. end: nothing of this side follows.
    modes: of request and response bodies, in a proxy's first message; None without them.
    subset: the endpoints to choose from; None for all. served: the endpoint that answered, if the proxy says.
    watched: the proxy does not wait for answers (`observability_mode`).
    """

    phase: Phase | None
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    end: bool = False
    modes: tuple[int, int] | None = None
    subset: tuple[str, ...] | None = None
    served: str = ""
    watched: bool = False


_PHASES: Final = {phase.value: phase for phase in Phase}
_HEADERS: Final = (Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS)
_BODIES: Final = (Phase.REQUEST_BODY, Phase.RESPONSE_BODY)


def read(data: bytes) -> Incoming:
    """Raises ValueError for bytes that are no message."""
    phase: Phase | None = None
    content = b""
    modes, subset, served, watched = None, None, "", False
    for field, value in _fields(data):
        if field in _PHASES:
            phase, content = _PHASES[field], _bytes(value)
        elif field == 8:
            subset, served = _metadata(_bytes(value))
        elif field == 10:
            watched = bool(value)
        elif field == 11:
            modes = _modes(_bytes(value))
    headers: list[tuple[bytes, bytes]] = []
    body, end = b"", False
    if phase in _BODIES:
        for field, value in _fields(content):
            if field == 1:
                body = _bytes(value)
            elif field == 2:
                end = bool(value)
    elif phase is not None:
        for field, value in _fields(content):
            if field == 1:
                headers = _header_map(_bytes(value))
            elif field == 3 and phase in _HEADERS:
                end = bool(value)
        end = end or phase not in _HEADERS
    return Incoming(phase, headers, body, end, modes, subset, served, watched)


# -- reading ----------------------------------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and an integer or bytes. Fixed-size values come as bytes. Raises ValueError."""
    at, size, count = 0, len(data), 0
    while at < size:
        count += 1
        if count > _MOST_FIELDS:
            raise ValueError("the message has too many fields")
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = _varint(data, at - 1)
        kind = key & 7
        if kind == 2:
            if at >= size:
                raise ValueError("the message is cut")
            length = data[at]
            at += 1
            if length >= 0x80:
                length, at = _varint(data, at - 1)
            end = at + length
            if end > size:
                raise ValueError("the message is cut")
            yield key >> 3, data[at:end]
            at = end
        elif kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
            if end > size:
                raise ValueError("the message is cut")
            yield key >> 3, data[at:end]
            at = end
        else:
            raise ValueError("the message has a field of no known type")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer and the place after it."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("the message is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("an integer is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a field has another type")


def _header_map(data: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    for field, header in _fields(data):
        if field != 1:
            continue
        name = text = b""
        for part, value in _fields(_bytes(header)):
            if part == 1:
                name = _bytes(value)
            elif part in (2, 3):  # a proxy sets one of both
                text = _bytes(value) or text
        found.append((name, text))
    return found


def _modes(data: bytes) -> tuple[int, int]:
    request = response = 0
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            request = value
        elif field == 2 and isinstance(value, int):
            response = value
    return request, response


def _metadata(data: bytes) -> tuple[tuple[str, ...] | None, str]:
    """From a Metadata: the endpoints of the subset hint, and the endpoint that served."""
    subset: tuple[str, ...] | None = None
    served = ""
    for field, value in _fields(data):
        if field != 1:
            continue
        namespace, content = _entry(_bytes(value))
        if namespace == _SUBSET_NAMESPACE:
            found = _struct_field(content, _SUBSET)
            subset = subset if found is None else _texts(found)
        elif namespace == _NAMESPACE:
            found = _struct_field(content, _SERVED)
            served = served if found is None else ",".join(_texts(found))
    return subset, served


def _entry(data: bytes) -> tuple[bytes, bytes]:
    """Key and value of a map's entry."""
    key = content = b""
    for field, value in _fields(data):
        if field == 1:
            key = _bytes(value)
        elif field == 2:
            content = _bytes(value)
    return key, content


def _struct_field(struct: bytes, name: bytes) -> bytes | None:
    """The bytes of a field's Value in a google.protobuf.Struct."""
    found: bytes | None = None
    for field, value in _fields(struct):
        if field == 1:
            key, content = _entry(_bytes(value))
            if key == name:
                found = content
    return found


def _texts(value: bytes) -> tuple[str, ...]:
    """The texts in a Value: of a string, which may have commas, or of a list of strings. Lists in that are left out,
    since their depth has no bound."""
    found: list[str] = []
    for field, content in _fields(value):
        if field == 3:
            found += _split(_bytes(content))
        elif field == 6:
            for item, inner in _fields(_bytes(content)):
                if item == 1:
                    for kind, text in _fields(_bytes(inner)):
                        if kind == 3:
                            found += _split(_bytes(text))
    if len(found) > _MOST_FIELDS:
        raise ValueError("the metadata has too many endpoints")
    return tuple(found)


def _split(text: bytes) -> list[str]:
    return [part.strip() for part in text.decode("utf-8", "replace").split(",") if part.strip()]


# -- writing ----------------------------------------------------------------------------------------------------------


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    parts = bytearray()
    while size >= 0x80:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    parts.append(size)
    return bytes(parts)


def _message(field: int, content: bytes) -> bytes:
    """A field with bytes, text or a message. field: below 16."""
    return b"%c%b%b" % (field << 3 | 2, _length(len(content)), content)


def _set_headers(headers: Iterable[tuple[bytes, bytes]], removed: Iterable[bytes]) -> bytes:
    """A HeaderMutation."""
    parts = [
        _message(1, _message(1, _message(1, name) + _message(3, value)) + b"\x18%c" % _OVERWRITE)
        for name, value in headers
    ]
    parts += [_message(2, name) for name in removed]
    return b"".join(parts)


def _common(headers: Iterable[tuple[bytes, bytes]], removed: Iterable[bytes]) -> bytes:
    mutation = _set_headers(headers, removed)
    return _message(2, mutation) if mutation else b""


def _value_entry(name: bytes, value: bytes) -> bytes:
    return _message(1, _message(1, name) + _message(2, value))


def _destination_metadata(destination: bytes) -> bytes:
    """The field `dynamic_metadata`."""
    inner = _value_entry(DESTINATION, _message(3, destination))
    return _message(8, _value_entry(_NAMESPACE, _message(5, inner)))


def header_answer(
    phase: Phase,
    headers: Iterable[tuple[bytes, bytes]] = (),
    removed: Iterable[bytes] = (),
    destination: bytes = b"",
) -> bytes:
    """The answer to headers of either side. destination: where the request goes, in header and metadata; the proxy
    then looks up its route again, which may depend on that header."""
    set_headers = [*headers, (DESTINATION, destination)] if destination else headers
    common = _common(set_headers, removed)
    if destination:
        common += b"\x28\x01"  # clear_route_cache
    answer = _message(phase - 1, _message(1, common))
    return answer + _destination_metadata(destination) if destination else answer


def body_answer(
    phase: Phase,
    body: bytes | None,
    *,
    end: bool,
    headers: Iterable[tuple[bytes, bytes]] = (),
    removed: Iterable[bytes] = (),
    destination: bytes = b"",
    whole: bool = False,
) -> list[bytes]:
    """The answers to a body in either direction. body: in pieces that follow each other; None to leave the proxy's.
    end: the body is complete with it.

    whole: the proxy holds the whole body, which is replaced at once. It takes headers and destination with it.
    """
    field = phase - 1  # of the answer
    if body is None or whole:
        set_headers = [*headers, (DESTINATION, destination)] if destination else headers
        common = _common(set_headers, removed)
        if body is not None:
            common += _message(3, _message(1, body))
        if destination:
            common += b"\x28\x01"
        answer = _message(field, _message(1, common))
        return [answer + _destination_metadata(destination) if destination else answer]
    ends = range(0, len(body), _PIECE) if body else (0,)
    answers = []
    for at in ends:
        piece = body if len(body) <= _PIECE else body[at : at + _PIECE]
        streamed = _message(1, piece) if piece else b""
        if end and at + _PIECE >= len(body):
            streamed += b"\x10\x01"
        answers.append(_message(field, _message(1, _message(3, _message(3, streamed)))))
    return answers


def trailer_answer(phase: Phase) -> bytes:
    return _message(phase - 1, b"")


def immediate(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, why: str) -> bytes:
    """The proxy answers the client. why: for the proxy's access log."""
    code = _message(1, b"\x08" + _length(status))
    details = _message(5, why.encode())
    return _message(7, code + _message(2, _set_headers(headers, ())) + _message(3, body) + details)
