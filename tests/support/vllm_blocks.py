"""vLLM's own KV-cache manager without a model, requests for it, and the invariants of its pool."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from plumage.settings.engine_policies import EvictionConfig
from plumage_bench.baselines.eviction import path
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.eviction.ordered_pool import install
from plumage_engine.vllm.guard import Guard

__all__ = ["BLOCK", "Cache", "check", "free_list"]

BLOCK = 4
_HELD = 2

init_none_hash(sha256)


class Cache:
    """vLLM's manager, the requests in it, and the eviction order. windows: sliding-window groups beside the
    full-attention one. policy: of the product or a baseline, by its short name; None keeps vLLM's own order."""

    def __init__(self, blocks: int, policy: str | None = "Hotness", *, windows: int = 0, seed: int = 0, **options: Any):
        shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        specs = [FullAttentionSpec(**shape), *(SlidingWindowSpec(**shape, sliding_window=2 * BLOCK),) * windows]
        groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
        config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        self.manager = KVCacheManager(config, 10_000, BLOCK, BLOCK, enable_caching=True, enable_kv_cache_events=True)
        self.pool = self.manager.block_pool
        self.scheduler = SimpleNamespace(kv_cache_manager=self.manager)
        self.counters = Counters()
        self.guard = Guard("eviction", self.counters)
        self.now = 0.0
        self.order: Any = None
        if policy is not None:
            self.order = install(
                self.scheduler, EvictionConfig(policy=path(policy), options=options), self.guard, self.counters,
                random.Random(seed), lambda: self.now,
            )  # fmt: skip
        self._named = 0

    def request(self, tokens: Sequence[int], salt: str | None = None) -> Request:
        self._named += 1
        parameters = SamplingParams(max_tokens=100)
        hasher = get_request_block_hasher(BLOCK, sha256)
        return Request(f"r{self._named}", list(tokens), parameters, None, block_hasher=hasher, cache_salt=salt)

    def start(self, tokens: Sequence[int], most: int = 10_000, salt: str | None = None) -> tuple[Request, int] | None:
        """Admits a request and computes up to `most` new tokens of its prompt. Returns it and its cached tokens; None
        when there is no room."""
        self.now += 1.0
        request = self.request(tokens, salt)
        known, hits, _ = self.manager.get_computed_blocks(request)
        new = min(most, len(tokens) - hits)
        if self.manager.allocate_slots(request, new, hits, known) is None:
            return None
        request.num_computed_tokens = hits + new
        return request, hits

    def go_on(self, request: Request, tokens: int = 1) -> bool:
        """Computes more of the prompt, or another token of the answer. False when there is no room."""
        self.now += 1.0
        done = request.num_computed_tokens
        for _ in range(tokens - (request.num_tokens - done)):
            request.append_output_token_ids(done % 7)
        tokens = min(tokens, request.num_tokens - done)
        if self.manager.allocate_slots(request, tokens) is None:
            return False
        request.num_computed_tokens += tokens
        return True

    def end(self, request: Request) -> None:
        self.now += 1.0
        self.manager.free(request)

    def serve(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """Serves one request from start to end. Returns its cached tokens."""
        started = self.start(tokens, salt=salt)
        assert started is not None
        self.end(started[0])
        return started[1]

    def names(self) -> dict[bytes, list[Any]]:
        """Everything that vLLM has cached, by hash and group."""
        cached = self.pool.cached_block_hash_to_block._cache
        return {name: list(found.values()) if isinstance(found, dict) else [found] for name, found in cached.items()}

    def removed(self, act: Callable[[], Any]) -> list[bytes]:
        """The hashes of the copies that `act` evicted, in order."""
        self.manager.take_events()
        act()
        return [e.block_hashes[0] for e in self.manager.take_events() if type(e).__name__ == "BlockRemoved"]


def free_list(pool: Any) -> list[Any]:
    """vLLM's free blocks in order. Checks that both directions of the list agree."""
    queue = pool.free_block_queue
    forward = list(_walk(queue.fake_free_list_head, "next_free_block", queue.fake_free_list_tail))
    backward = list(_walk(queue.fake_free_list_tail, "prev_free_block", queue.fake_free_list_head))
    assert [block.block_id for block in forward] == [block.block_id for block in reversed(backward)]
    assert len(forward) == queue.num_free_blocks == len({block.block_id for block in forward})
    return forward


def _walk(block: Any, attribute: str, end: Any) -> Iterator[Any]:
    while (block := getattr(block, attribute)) is not end:
        yield block


def check(cache: Cache, *, cut: bool = False) -> None:
    """Every block is free or referenced. The tree holds what vLLM has cached, each entry with its parent, and its
    counts of blocks are right. cut: hashes were removed in the middle, so blocks below them are in no tree."""
    pool, order = cache.pool, cache.order
    free = {block.block_id for block in free_list(pool)}
    for block in pool.blocks:
        assert block.is_null or (block.block_id in free) == (block.ref_cnt == 0), block
    if order is None or not cache.guard.on:
        return
    names = {name: copies for name, copies in cache.names().items() if name[-4:] == bytes(4)}
    runs = list(order.tree.runs())
    tracked = [name for run in runs for name in run.hashes]
    assert len(tracked) == len(set(tracked)) == order.tree.cached
    assert set(tracked) <= set(names) if cut else set(tracked) == set(names)
    for run in runs:
        _check_run(order, run, names)
    assert order.tree.cached == order.tree.in_use + sum(len(run.hashes) for run in runs if not run.busy)
    for name, copies in names.items():
        assert any(copy.block_id not in order._copies.spare for copy in copies), name
    assert all(block_id in free for block_id in (*order._copies.spare, *order._others))
    _check_states(cache, set(tracked), free)


def _check_run(order: Any, run: Any, names: dict[bytes, list[Any]]) -> None:
    used = [copy for name in run.hashes for copy in names[name] if order.state[copy.block_id] == _HELD]
    assert run.holds == len(used), run
    assert run.hashes
    assert run.parent is None or run.parent.hashes[-1] in names
    assert (run in order.tree.leaves) == run.evictable


def _check_states(cache: Cache, tracked: set[bytes], free: set[int]) -> None:
    order = cache.order
    for block in cache.pool.blocks:
        state, is_free = order.state[block.block_id], block.block_id in free
        if block.block_hash in tracked:
            assert state in ((1,) if is_free else (2, 0)), (block, state)
        elif block.block_hash is None:
            assert state == 0, (block, state)
        else:
            assert state == (3 if is_free else 0), (block, state)
        assert (state == 3) == (block.block_id in order._others)
