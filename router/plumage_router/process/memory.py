"""Memory of the router's process: reuse freed memory, return it to the system, and keep garbage collection rare and
short.

A long prompt exists in half a dozen copies for a moment: as parts, body, text, rendered prompt and payload. With
glibc's defaults each copy is a mapping of its own, or the end of a heap that is cut off when it is freed. The system
cleared all of its pages for each request: half of a router's CPU time at 450 KB. Therefore blocks come from a heap that
keeps what is free. `MemoryTrimmer` returns it after a burst. Elsewhere than on glibc both do nothing.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["MemoryTrimmer", "freeze_startup_objects", "keep_freed_blocks"]

_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD of malloc.h
_MMAP_THRESHOLD: Final = -3
_MAPPED: Final = 32 << 20  # bytes, the most that glibc allows; a larger block is returned as soon as it is freed
_KEPT: Final = 64 << 20  # bytes at the heap's end that `free` does not return
_WORTH_TRIMMING: Final = 8 << 20  # bytes of bodies released since the last trim
_GC_THRESHOLDS: Final = (20_000, 20, 50)  # a collection costs 0.2 to 0.7 µs an object


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def keep_freed_blocks() -> None:
    """Call once at start: blocks up to a fixed size come from the heap, which keeps them when they are freed."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)


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

    def check(self, peak: int, buffered: int) -> None:
        """Call with each tick. buffered: bytes of request bodies in memory now; peak: the most since the last tick."""
        self._peak = max(self._peak, peak)
        if self._peak >= _WORTH_TRIMMING and buffered <= self._peak // 2:
            self._peak = buffered
            self._trim()
