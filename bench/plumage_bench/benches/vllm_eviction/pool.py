"""vLLM's own block pool, with or without the plugin's eviction order. Prompts are lists of block names.

There is no model and no scheduler. A request looks its prefix up, touches it, takes new blocks, caches what it computed
and frees all at the end, with the calls of vLLM's KV-cache manager.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.eviction.workloads import BLOCK, Workload
from plumage_bench.ours import Ours
from plumage_bench.vllm.engine import prepare_environment
from plumage_bench.workloads import Prompt

__all__ = ["STOCK", "PooledRequest", "VllmPool", "hashes", "order_of", "replay"]

STOCK = "vLLM"
"""vLLM's own order, LRU, without the plugin."""


@dataclass(slots=True)
class PooledRequest:
    """blocks: in use by it. hashes: of its prompt and answer. prompt: how many of them are the prompt's."""

    blocks: list[Any]
    hashes: Sequence[bytes]
    prompt: int
    group: int


def hashes(names: Sequence[int]) -> list[bytes]:
    """Hashes as long as sha256's, equal for equal names."""
    return [name.to_bytes(8, "big") * 4 for name in names]


def order_of(policy: str) -> dict[str, Any]:
    """The plugin's `eviction` setting for a policy that a manifest names."""
    return dict(Ours({"engine.eviction.policy": policy}, "VLLM").plugin()["eviction"])


class VllmPool:
    """capacity: usable blocks. now: the time for policies."""

    def __init__(self, capacity: int, policy: str, seed: int) -> None:
        prepare_environment()
        self.now = 0.0
        manager = _manager(capacity + 1)  # one block is vLLM's null block
        self.pool: Any = manager.block_pool
        if policy != STOCK:
            self._order(SimpleNamespace(kv_cache_manager=manager), policy, seed)

    def _order(self, scheduler: Any, policy: str, seed: int) -> None:
        from plumage.settings.engine_policies import EvictionConfig
        from plumage_engine.vllm.counters import Counters
        from plumage_engine.vllm.eviction.ordered_pool import install
        from plumage_engine.vllm.guard import Guard

        counters = Counters()
        self.guard = Guard("eviction", counters)
        self.guard.fall_back = lambda: None
        install(
            scheduler,
            EvictionConfig.model_validate(order_of(policy)),
            self.guard,
            counters,
            random.Random(seed),
            lambda: self.now,
        )

    def start(self, chain: Sequence[bytes], answer: int, group: int = 0) -> tuple[PooledRequest, int] | None:
        """A prompt, and room for an answer of this many blocks. Returns the request and its number of cached blocks;
        None if there is no room, and then nothing changed."""
        pool = self.pool
        known = list(self._known(chain))
        wanted = len(chain) - len(known) + answer
        if wanted + sum(not block.ref_cnt for block in known) > pool.get_num_free_blocks():
            return None
        pool.touch(known)
        request = PooledRequest([*known, *pool.get_new_blocks(wanted)], chain, len(chain), group)
        self._cache(request, len(known), len(chain))
        return request, len(known)

    def end(self, request: PooledRequest, answer: Sequence[bytes] = ()) -> None:
        """Caches the full blocks of the answer below the prompt's, and frees all, last ones first."""
        request.hashes = [*request.hashes, *answer]
        self._cache(request, request.prompt, len(request.hashes))
        self.pool.free_blocks(reversed(request.blocks))

    def check(self) -> None:
        """ConfigurationError if the plugin's order failed during the run: then the figures would be vLLM's own."""
        guard = getattr(self, "guard", None)
        if guard is not None and not guard.on:
            raise ConfigurationError(f"the order of eviction is off: {guard.reason}")

    def _known(self, chain: Sequence[bytes]) -> Iterator[Any]:
        lookup = self.pool.get_cached_block
        for name in chain:
            found = lookup(name, [0])
            if found is None:
                return
            yield found[0]

    def _cache(self, request: PooledRequest, first: int, end: int) -> None:
        if first < end:
            hashed = SimpleNamespace(block_hashes=request.hashes)
            self.pool.cache_full_blocks(hashed, request.blocks, first, end, BLOCK, 0)


def _manager(blocks: int) -> Any:
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, 1 << 20, BLOCK, BLOCK, enable_caching=True)


def replay(work: Workload, policy: str, seed: int) -> float:
    """Cached ÷ all prompt tokens, from an empty cache: `plumage_bench.benches.eviction.replay` on vLLM's pool."""
    cache = VllmPool(work.capacity, policy, seed)
    running: deque[tuple[PooledRequest, Prompt]] = deque()
    hit = total = 0
    for now, prompt in enumerate(work.prompts):
        cache.now = float(now)
        if work.turns:
            _end_turn(cache, running, prompt.group)
        if len(running) >= work.batch:
            _finish(cache, *running.popleft())
        hit += _start(cache, running, prompt) * BLOCK
        total += prompt.tokens
    cache.check()
    return hit / total


def _end_turn(cache: VllmPool, running: deque[tuple[PooledRequest, Prompt]], group: int) -> None:
    for request in list(running):
        if request[0].group == group:
            running.remove(request)
            _finish(cache, *request)


def _start(cache: VllmPool, running: deque[tuple[PooledRequest, Prompt]], prompt: Prompt) -> int:
    """Starts a request. While there is no room the oldest requests end. Returns its cached blocks."""
    chain, answer = hashes(prompt.blocks), -(-prompt.output_tokens // BLOCK)
    while True:
        started = cache.start(chain, answer, prompt.group)
        if started is not None:
            running.append((started[0], prompt))
            return started[1]
        if not running:
            raise ConfigurationError(f"a prompt of {len(chain)} blocks does not fit into the pool")
        _finish(cache, *running.popleft())


def _finish(cache: VllmPool, request: PooledRequest, prompt: Prompt) -> None:
    cache.end(request, hashes(prompt.output_blocks[: len(request.blocks) - request.prompt]))
