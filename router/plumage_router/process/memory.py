"""Memory of the router's process: return freed memory to the system, and keep garbage collection rare and short.

glibc keeps freed memory for later allocations. It also raises its mmap threshold each time a mapped block is freed, so
after a burst of large bodies a router would hold their memory for good. Elsewhere than on glibc the first half does
nothing.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["MemoryTrimmer", "freeze_startup_objects", "map_large_blocks"]

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of malloc.h
_MAPPED: Final = 131_072  # bytes; glibc's initial value, which stays fixed once it is set explicitly
_WORTH_TRIMMING: Final = 8 << 20  # bytes of bodies released since the last trim
_GC_THRESHOLDS: Final = (20_000, 20, 50)  # a collection costs 0.2 to 0.7 µs an object


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def map_large_blocks() -> None:
    """Call once at start: every block above a fixed size gets its own mapping, which is returned when it is freed."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)


def freeze_startup_objects() -> None:
    """Call once after start: the collector never scans the objects that exist now, and runs rarely for the others."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class MemoryTrimmer:
    """Returns free memory to the system once most request bodies are released. One trim takes about a millisecond.

    trim: returns the memory; the C library's `malloc_trim` by default.
    """

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        libc = _libc()
        self._trim = trim or ((lambda: libc.malloc_trim(0)) if libc is not None else lambda: None)
        self._peak = 0

    def check(self, buffered: int) -> None:
        """Call with each tick. buffered: bytes of request bodies in memory now."""
        self._peak = max(self._peak, buffered)
        if self._peak >= _WORTH_TRIMMING and buffered <= self._peak // 4:
            self._peak = buffered
            self._trim()
