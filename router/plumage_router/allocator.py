"""The C library's allocator as a router wants it: memory of large bodies goes back to the system once they are gone.

glibc keeps what was freed for the next time. It also raises the size above which a block is mapped by itself, and given
back by itself, with each such block that is freed. After a burst of large bodies a router would hold their memory for
good. Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["Trimmer", "map_large_blocks"]

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of malloc.h
_MAPPED: Final = 131_072  # bytes; glibc's own first value, which stays once it is set
_WORTH: Final = 8 << 20  # bytes of bodies gone since the last time


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def map_large_blocks() -> None:
    """Once, at the start: blocks above a fixed size are mapped by themselves for ever."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)


class Trimmer:
    """`look` with each tick: gives free memory back once most of what was held is gone. It takes about a millisecond.
    trim: does it, the C library's own by default."""

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        libc = _libc()
        self._trim = trim or ((lambda: libc.malloc_trim(0)) if libc is not None else lambda: None)
        self._peak = 0

    def look(self, held: int) -> None:
        """held: bytes of request bodies now."""
        self._peak = max(self._peak, held)
        if self._peak >= _WORTH and held <= self._peak // 4:
            self._peak = held
            self._trim()
