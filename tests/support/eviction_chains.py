"""Chains of blocks for tests of eviction policies, and the misses of a policy on them."""

from __future__ import annotations

import random

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool

__all__ = ["misses", "paths", "serve"]


def serve(pool: BlockPool, blocks: list[int], now: float, owner: str | None = None) -> int:
    known = pool.pin(blocks, now)
    assert pool.allocate(len(blocks) - known, now)
    pool.commit(blocks[known:], blocks[known - 1] if known else None, now, owner)
    pool.release(blocks, 0, now)
    return known


def paths(seed: int, count: int) -> list[list[int]]:
    """Chains in a small tree. It has so few leaves that they repeat often."""
    rng = random.Random(seed)
    chains = []
    for _ in range(count):
        path, blocks = 1, []
        for _ in range(rng.randint(1, 6)):
            path = path * 4 + rng.randint(0, 2)
            blocks.append(path)
        chains.append(blocks)
    return chains


def misses(policy: EvictionPolicy, capacity: int, chains: list[list[int]]) -> int:
    pool = BlockPool(capacity, policy)
    return sum(len(blocks) - serve(pool, blocks, float(now)) for now, blocks in enumerate(chains))
