"""A body as it comes in, in parts of any size.

What is held is what was counted: an object a part would take some fifty bytes more, however small the part is, so a
client that sends byte by byte would be held at many times its size.
"""

from __future__ import annotations

__all__ = ["Parts"]

SMALL, TOGETHER = 2048, 65_536  # bytes: parts below the first are kept together, up to the second


class Parts:
    """The parts of one body. A body that comes in one part is never copied."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        parts = self._parts
        if len(data) >= SMALL or not parts:
            parts.append(data)
            return
        last = parts[-1]
        if isinstance(last, bytearray) and len(last) < TOGETHER:
            last += data
        else:
            parts.append(bytearray(data))

    def take(self) -> bytes:
        """All of them, and none are left."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def drop(self) -> None:
        self._parts = []
