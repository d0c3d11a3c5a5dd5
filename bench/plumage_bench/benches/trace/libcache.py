"""Replays the same trace through a policy of libCacheSim: every block is an object of size one, and blocks are accessed
one after the other.

Its policies know no chains, requests or partial blocks: they cache every accessed block. That is the usual use of the
library for block traces, and its published figures assume it.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcachesim

from plumage_bench.benches.trace.onecache import Chain

__all__ = ["LEADERS", "LEFT_OUT", "NAMES", "OFFLINE", "hits"]

NAMES = (
    "ARC", "Cacheus", "Clock", "Clock2QPlus", "ClockPro", "FIFO", "FlashProb", "GDSF", "GLCache", "Hyperbolic", "LFU",
    "LFUDA", "LHD", "LIRS", "LRB", "LRU", "LRUK", "LRUProb", "LeCaR", "MQ", "Random", "S3FIFO", "SLRU", "Sieve",
    "ThreeLCache", "TwoQ", "WTinyLFU",
)  # fmt: skip
LEADERS = ("ARC", "GDSF", "LHD", "LIRS", "LRU", "LRUK", "MQ", "S3FIFO", "WTinyLFU")
"""Policies that are near the best at some size of a chat trace. A quick run has only these."""
OFFLINE = "Belady"
LEFT_OUT = "Size and BeladySize (order by size: all blocks are equal), PluginCache (no policy of its own)"
_HASH_POWER = 18
_NEVER = 2**62


def hits(name: str, chains: Sequence[Chain], capacity: int) -> list[int]:
    """Blocks found cached, by request, from an empty cache of `capacity` blocks."""
    cache = getattr(libcachesim, name)(capacity, hashpower=_HASH_POWER)
    access = libcachesim.Request()
    access.obj_size = 1
    following = _next_uses(chains) if name == OFFLINE else None
    clock, found = 0, []
    for chain in chains:
        known = 0
        for block in chain:
            access.obj_id = block
            access.clock_time = clock
            if following is not None:
                access.next_access_vtime = following[clock]
            known += bool(cache.get(access))
            clock += 1
        found.append(known)
    return found


def _next_uses(chains: Sequence[Chain]) -> list[int]:
    """For each access the index of the next one of the same block."""
    accesses = [block for chain in chains for block in chain]
    following, seen = [_NEVER] * len(accesses), dict[int, int]()
    for index in range(len(accesses) - 1, -1, -1):
        following[index] = seen.get(accesses[index], _NEVER)
        seen[accesses[index]] = index
    return following
