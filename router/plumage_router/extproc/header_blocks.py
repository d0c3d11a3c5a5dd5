"""The compressed headers of one connection (HPACK, RFC 7541).

Our settings ask the peer to keep no table of headers, so equal requests have equal bytes, and these are read once. Some
peers keep their first table of 4 KiB nevertheless: that is allowed to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from hpack import Decoder, HPACKError

from plumage_router.extproc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, PeerError

__all__ = ["MAX_HEADERS", "BlockKind", "HeaderBlocks"]

MAX_HEADERS: Final = 32_768
"""Bytes of a block, and of the headers in it. A proxy's own call has about one kilobyte."""
_MAX_PARTS: Final = 16  # frames of one block
_MAX_KEPT: Final = 16  # blocks that are read once
_MAX_KEPT_BLOCK: Final = 1024  # bytes


_NEEDED: Final = (b":method", b":scheme", b":path")
_PSEUDO: Final = frozenset((*_NEEDED, b":authority"))
_OF_A_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)  # fmt: skip


class BlockKind(Enum):
    """What a block may be (RFC 9113 §8.2, §8.3)."""

    REQUEST = "request"
    TRAILERS = "trailers"
    MALFORMED = "malformed"


class HeaderBlocks:
    """Collects the parts of a block with `begin` and `add`, and reads blocks with `read`.

    `stream`: whose block is not complete; 0 for none. `flags`: of its first frame.
    """

    __slots__ = ("_block", "_decoder", "_kept", "_parts", "flags", "stream")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADERS)
        self._kept: dict[bytes, tuple[BlockKind, dict[bytes, bytes]]] = {}
        self._block = bytearray()
        self._parts = 0
        self.stream = self.flags = 0

    def begin(self, stream: int, flags: int, part: bytes) -> None:
        """Takes the first part of a block that is not complete."""
        self.stream, self.flags, self._parts = stream, flags, 0
        self._block = bytearray()
        self.add(part)

    def add(self, part: bytes) -> None:
        """Raises PeerError for too many parts, also empty ones, or too many bytes."""
        self._parts += 1
        self._block += part
        if self._parts > _MAX_PARTS or len(self._block) > MAX_HEADERS:
            raise PeerError(ENHANCE_YOUR_CALM)

    def end(self) -> bytes:
        """The block is complete. Returns it."""
        block = bytes(self._block)
        self.stream, self._block = 0, bytearray()
        return block

    def read(self, block: bytes) -> tuple[BlockKind, dict[bytes, bytes]]:
        """The headers, of repeated ones the last. Raises PeerError if they cannot be read."""
        kept = self._kept.get(block)
        if kept is not None:
            return kept
        if len(block) > MAX_HEADERS:
            raise PeerError(ENHANCE_YOUR_CALM)
        try:
            decoded = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise PeerError(COMPRESSION_ERROR) from error
        fields = [(bytes(field[0]), bytes(field[1])) for field in decoded]
        made = _kind(fields), dict(fields)
        if len(block) > _MAX_KEPT_BLOCK:
            return made
        # While the table is empty a block has the same meaning each time.
        if not self._decoder.header_table.dynamic_entries and len(self._kept) < _MAX_KEPT:
            self._kept[block] = made
        else:
            self._kept.clear()
        return made


def _kind(fields: Sequence[tuple[bytes, bytes]]) -> BlockKind:
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                return BlockKind.MALFORMED
            pseudo[name] = value
            continue
        regular = True
        if name in _OF_A_CONNECTION or (name == b"te" and value != b"trailers") or not _is_plain(name, value):
            return BlockKind.MALFORMED
    if not pseudo:
        return BlockKind.TRAILERS
    return BlockKind.REQUEST if all(pseudo.get(name) for name in _NEEDED) else BlockKind.MALFORMED


def _is_plain(name: bytes, value: bytes) -> bool:
    """Whether name and value could stand in a message of HTTP/1.1, and the name is in lower case."""
    return bool(name) and name == name.lower() and not any(text in value for text in (b"\r", b"\n", b"\0"))
