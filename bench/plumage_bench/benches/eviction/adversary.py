"""The two constructions of KVRouting App. C, compared with leaf-OPT: the competitive ratios when they are reached.

All paths share a prefix and differ in their last block. There is one path more than the cache has room for. In a loop
(C.1) leaf-LRU always drops the path that is next: it misses every time, leaf-OPT once in about n. With random draws
(C.2) no online policy has fewer misses than one in n, and leaf-OPT has one in about n·H(n), the coupon collector's
time. So no policy's ratio is better than H(n) ≈ ln n, which RLT reaches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage_bench.benches.eviction.replay import policy_for, replay
from plumage_bench.benches.eviction.workloads import Workload
from plumage_bench.workloads import Prompt

__all__ = ["Construction", "harmonic", "measure"]

_PREFIX = 4
_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Construction:
    """Misses ÷ leaf-OPT's, after the cache was filled. n: cache size - path length + 1, in blocks."""

    n: int
    loop_lru: float
    loop_rlt: float
    random_lru: float
    random_rlt: float


def harmonic(n: int) -> float:
    """1 + 1/2 + … + 1/n."""
    return sum(1.0 / k for k in range(1, n + 1))


def measure(n: int, seed: int) -> Construction:
    """Both constructions for one n."""
    rng = random.Random(seed)
    leaves = n + 1
    loop = [index % leaves for index in range(leaves * _ROUNDS)]
    drawn = [rng.randrange(leaves) for _ in loop]
    ratios = [_over_opt(n, order, policy, seed) for order in (loop, drawn) for policy in ("Lru", "Rlt")]
    return Construction(n, *ratios)


def _over_opt(n: int, order: list[int], policy: str, seed: int) -> float:
    prompts = [_path(leaf) for leaf in order]
    work = Workload("construction", prompts, batch=1, capacity=_PREFIX + n)
    cold = _PREFIX + n
    ours, best = (replay(work, policy_for(name, work, seed)).misses - cold for name in (policy, "Belady"))
    return ours / max(1, best)


def _path(leaf: int) -> Prompt:
    blocks = (*range(1, _PREFIX + 1), 1000 + leaf)
    return Prompt(len(blocks) * 16, blocks, 0, leaf)
