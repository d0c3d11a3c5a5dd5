"""A buffer for a request body that arrives in parts of any size.

Python adds about fifty bytes to each bytes object. So small parts are collected in a bytearray: the buffer takes about
as much memory as `BodyMemory` counts, even when a client sends byte by byte.
"""

from __future__ import annotations

__all__ = ["BodyBuffer"]

_SMALL, _COLLECTED = 2048, 65_536  # bytes: parts below the first are collected, up to the second


class BodyBuffer:
    """The parts of one body. A body that arrives in one part is never copied."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        parts = self._parts
        if len(data) >= _SMALL or not parts:
            parts.append(data)
            return
        last = parts[-1]
        if isinstance(last, bytearray) and len(last) < _COLLECTED:
            last += data
        else:
            parts.append(bytearray(data))

    def take(self) -> bytes:
        """Returns the whole body and empties the buffer."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def clear(self) -> None:
        self._parts = []
