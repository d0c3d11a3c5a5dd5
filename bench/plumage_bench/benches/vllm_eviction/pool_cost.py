"""The cost of the eviction order: CPU time for each allocated block in vLLM's pool with 100,000 blocks, against vLLM's
own.

Each pair serves the same requests with both pools, one directly after the other. Both pools are full, and all their
blocks have been replaced before. Time is the CPU time of the process, with the garbage collector's heap frozen as in
vLLM.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from plumage_bench.benches.vllm_eviction.pool import STOCK, PooledRequest, VllmPool
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["LOADS", "Cost", "Load", "measure"]

_BATCH = 32
_PAIR_BLOCKS = 25_000
AGAIN = f"{STOCK} again"
"""A second pool without the plugin, which shows the noise."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests with one of `groups` prefixes of this many blocks, the first groups more often, and `own` blocks of
    their own."""

    name: str
    groups: int
    prefix: int
    own: int


LOADS = (Load("long shared prefixes", 200, 128, 64), Load("nothing shared", 0, 0, 128))


@dataclass(frozen=True, slots=True)
class Cost:
    """microseconds: CPU time for each allocated block, including caching, freeing and eviction. over: ÷ vLLM's own."""

    load: str
    policy: str
    microseconds: float
    over: PairedRatio


def measure(load: Load, policies: Sequence[str], *, blocks: int, pairs: int, seed: int) -> list[Cost]:
    """vLLM's own pool first, then itself again, then each of `policies`."""
    contenders = (STOCK, AGAIN, *policies)
    pools = {name: VllmPool(blocks, STOCK if name == AGAIN else name, seed) for name in contenders}
    rng = random.Random(seed)
    prefixes = [[rng.randbytes(32) for _ in range(load.prefix)] for _ in range(load.groups)]
    full = _requests(load, prefixes, rng, int(1.6 * blocks))
    for pool in pools.values():
        _serve(pool, full)
    gc.collect()
    gc.freeze()
    try:
        times = _pairs(pools, [_requests(load, prefixes, rng, _PAIR_BLOCKS) for _ in range(pairs)], rng)
    finally:
        gc.unfreeze()
    for pool in pools.values():
        pool.check()
    return [Cost(load.name, name, median(times[name]), paired_ratio(times[name], times[STOCK])) for name in contenders]


def _pairs(
    pools: dict[str, VllmPool], rounds: Sequence[Sequence[Sequence[bytes]]], rng: random.Random
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in pools}
    for requests in rounds:
        for name in rng.sample(list(pools), len(pools)):
            before = time.process_time()
            allocated = _serve(pools[name], requests)
            times[name].append((time.process_time() - before) / allocated * 1e6)
    return times


def _requests(load: Load, prefixes: Sequence[list[bytes]], rng: random.Random, blocks: int) -> list[Sequence[bytes]]:
    """As many requests as have this many blocks of their own."""
    count = blocks // load.own
    return [
        [*(prefixes[min(int(rng.paretovariate(0.8)) - 1, len(prefixes) - 1)] if prefixes else ()),
         *(rng.randbytes(32) for _ in range(load.own))]
        for _ in range(count)
    ]  # fmt: skip


def _serve(cache: VllmPool, requests: Sequence[Sequence[bytes]]) -> int:
    """Serve the requests, a batch in flight at a time. Returns the number of allocated blocks."""
    running: deque[PooledRequest] = deque()
    allocated = 0
    for chain in requests:
        cache.now += 0.01
        if len(running) >= _BATCH:
            cache.end(running.popleft())
        started = cache.start(chain, 0)
        if started is None:
            raise MemoryError(f"{_BATCH} requests of {len(chain)} blocks do not fit")
        request, known = started
        allocated += len(chain) - known
        running.append(request)
    for request in running:
        cache.end(request)
    return allocated
