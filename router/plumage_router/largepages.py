"""Large pages under the memory of a process that lives long.

A decision touches memory all over: the mirror's tables, the interpreter's objects. Each page of 4 KB wants a place of
its own in the processor's TLB, and in a virtual machine a miss walks two tables. Python takes its memory in pieces of
1 MB and asks for no large pages, so where the system gives them on request only, as most do, it gets none. Here they
are asked for behind its back (MADV_COLLAPSE, Linux 6.1). A system that is set to `never` is not asked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["collapse", "pieces", "resident"]

SIZE = 2 << 20  # bytes of a large page
_COLLAPSE = 25  # MADV_COLLAPSE
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPS = Path("/proc/self/maps")
_STATM = Path("/proc/self/statm")


def collapse() -> int:
    """Bytes of this process that lie in large pages now; 0 where the system has none to give. Takes under a millisecond
    a page that is new, mostly without the interpreter's lock: once requests are served, call it in a thread."""
    if sys.platform != "linux":
        return 0
    try:
        if "[never]" in _SETTING.read_text():
            return 0
        found = list(pieces(_MAPS.read_text().splitlines()))
    except OSError:
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(size for start, size in found if advise(start, size, _COLLAPSE) == 0)


def pieces(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of what large pages could hold: whole ones within private memory that is no file's."""
    for line in maps:
        places, rights, _, _, inode, *name = line.split()
        if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(place, 16) for place in places.split("-"))
        start, end = -(-start // SIZE) * SIZE, end // SIZE * SIZE
        if start < end:
            yield start, end - start


def resident() -> int:
    """Pages of memory in use; 0 where that can't be told."""
    try:
        return int(_STATM.read_text().split()[1])
    except OSError:
        return 0
