"""A request body: its parts as they arrived, of any size, and the whole.

Python adds about fifty bytes to each bytes object. So small parts are collected in a bytearray: the buffer takes about
as much memory as `BodyMemory` counts, even when a client sends byte by byte.

To join 16 MB takes 15 ms. So a large body is first checked part by part, and joined only if it will be parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BodyBuffer"]

_SMALL, _COLLECTED = 2048, 65_536  # bytes: parts below the first are collected, up to the second


class BodyBuffer:
    """The parts of one body. A body that arrives in one part is never copied."""

    __slots__ = ("_parts", "_size")

    def __init__(self, data: bytes = b"") -> None:
        self._parts: list[bytes | bytearray] = [data] if data else []
        self._size = len(data)

    def __len__(self) -> int:
        return self._size

    @property
    def parts(self) -> Sequence[bytes | bytearray]:
        return self._parts

    def add(self, data: bytes) -> None:
        parts = self._parts
        self._size += len(data)
        if len(data) >= _SMALL or not parts:
            parts.append(data)
            return
        last = parts[-1]
        if isinstance(last, bytearray) and len(last) < _COLLECTED:
            last += data
        else:
            parts.append(bytearray(data))

    def whole(self) -> bytes:
        """Returns the whole body. The first call joins its parts."""
        parts = self._parts
        if len(parts) == 1 and type(parts[0]) is bytes:
            return parts[0]
        joined = b"".join(parts)
        self._parts = [joined]
        return joined

    def share(self) -> BodyBuffer:
        """Another buffer with the same complete body, none of whose bytes is copied."""
        other = BodyBuffer()
        other._parts, other._size = list(self._parts), self._size
        return other

    def clear(self) -> None:
        self._parts = []
        self._size = 0
