"""Replays a trace through one cache of Plumage's: the block pool and an eviction policy, request by request.

A request pins its cached blocks, takes blocks for the rest, caches them, and ends. Time is its index, and there is no
device. Of a chain that is longer than the cache, the first part that fits is cached.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.eviction import make_policy
from plumage_bench.baselines.eviction.belady import Belady, future_of
from plumage_bench.ours import Ours

__all__ = ["Chain", "belady_hits", "hotness", "hotness_hits", "replay"]

Chain = Sequence[int]
OURS = Ours()


def hotness(capacity: int) -> EvictionPolicy:
    """The eviction policy of the default manifest, which has no random choices."""
    ours = OURS.engine()
    return make_policy(ours.eviction, capacity=capacity, rng=random.Random(0), **ours.eviction_options)


def replay(chains: Sequence[Chain], policy: EvictionPolicy, capacity: int) -> list[int]:
    """Blocks found cached, by request, from an empty cache of `capacity` blocks."""
    pool = BlockPool(capacity, policy)
    hits = []
    for now, whole in enumerate(chains):
        chain = whole[:capacity]
        known = pool.pin(chain, now)
        pool.allocate(len(chain) - known, now)
        pool.commit(chain[known:], chain[known - 1] if known else None, now)
        pool.release(chain, 0, now)
        hits.append(known)
    return hits


def hotness_hits(chains: Sequence[Chain], capacity: int) -> list[int]:
    """Hits of Plumage's policy."""
    return replay(chains, hotness(capacity), capacity)


def belady_hits(chains: Sequence[Chain], capacity: int) -> list[int]:
    """Hits of leaf-OPT, which knows the future requests."""
    return replay(chains, Belady(future_of(chains)), capacity)
