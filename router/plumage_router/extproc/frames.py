"""Frames of HTTP/2 as bytes (RFC 9113 §4, §6): kinds, flags, error codes, settings. No sockets."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["FRAME", "MOST_WINDOW", "NUMBER", "PREFACE", "SETTING", "PeerError", "frame", "literal", "unpadded"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
SETTINGS_TIMEOUT: Final = 0x4
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_STREAMS: Final = 0x3
INITIAL_WINDOW: Final = 0x4
FRAME_SIZE: Final = 0x5
HEADER_LIST: Final = 0x6

FIRST_WINDOW: Final = 65_535  # RFC 9113 §6.9.2
MOST_WINDOW: Final = (1 << 31) - 1
"""The largest window, and the highest number of a stream."""
FIRST_FRAME: Final = 16_384  # bytes of a frame that any peer takes (§4.2)
MOST_FRAME: Final = (1 << 24) - 1

FRAME: Final = struct.Struct(">HBBBI")
"""Before each payload: its length (high 16 bits, low 8), kind, flags, stream."""
NUMBER: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")


class PeerError(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is in no table (RFC 7541 §6.2.2). Both are shorter than 127 bytes."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


def unpadded(payload: bytes) -> bytes:
    """A DATA or HEADERS payload without its padding. Raises PeerError if there is more padding than payload."""
    if not payload or payload[0] >= len(payload):
        raise PeerError(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
