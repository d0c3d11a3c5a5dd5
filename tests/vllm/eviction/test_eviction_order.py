"""Which blocks vLLM's pool evicts first and which stay, and what happens when the plugin's order fails or is
unavailable."""

from __future__ import annotations

from typing import Any

import pytest
from support.vllm_blocks import BLOCK, Cache, check, free_list

from plumage.errors import ConfigurationError
from plumage_engine.vllm.compat import block_pool as surface
from plumage_engine.vllm.eviction.ordered_pool import EvictionOrder, OrderedPool, use_pool_hotness
from plumage_engine.vllm.pool_hotness import PoolHotness

BlockPool = surface.BlockPool


def prompt(*blocks: int) -> list[int]:
    """This many whole blocks, each of one repeated token, and one more token, which is never cached."""
    return [token for token in blocks for _ in range(BLOCK)] + [0]


def cached(cache: Cache, tokens: list[int]) -> int:
    """Blocks of the prompt that a request would find."""
    return int(cache.manager.get_computed_blocks(cache.request(tokens))[1]) // BLOCK


def test_empty_blocks_are_evicted_first() -> None:
    cache = Cache(20)
    cache.serve(prompt(1, 2, 3))
    assert cache.removed(lambda: cache.serve(prompt(4, 5, 6))) == []
    assert cached(cache, prompt(1, 2, 3)) == cached(cache, prompt(4, 5, 6)) == 3


def test_spare_copy_is_evicted_before_single_blocks() -> None:
    """Two requests share the blocks that were cached at their arrival. Each computes the following blocks for
    itself."""
    cache = Cache(14)
    cache.serve(prompt(9))  # idle for the longest time
    both = [cache.start(prompt(1, 2, 3), BLOCK), cache.start(prompt(1, 2, 3), BLOCK)]
    for started in both:
        assert started is not None
        assert cache.go_on(started[0], started[0].num_tokens - started[0].num_computed_tokens)
    for started in both:
        assert started is not None
        cache.end(started[0])
    check(cache)
    room = cache.pool.get_num_free_blocks() - 4  # two blocks have two copies, two have one
    gone = cache.removed(lambda: cache.pool.free_blocks(cache.pool.get_new_blocks(room)))
    assert len(gone) == 2
    assert cached(cache, prompt(1, 2, 3)) == 3
    assert cached(cache, prompt(9)) == 1
    assert cache.counters.get("evictions", "duplicate") == 2
    check(cache)


def test_copy_is_spare_while_first_block_is_in_use() -> None:
    cache = Cache(12)
    both = [cache.start(prompt(1, 2), BLOCK), cache.start(prompt(1, 2), BLOCK)]
    assert both[0] is not None
    assert both[1] is not None
    assert cache.go_on(both[0][0], BLOCK + 1)
    assert cache.go_on(both[1][0], BLOCK + 1)
    cache.end(both[1][0])
    assert len(cache.order._copies.spare) == 1
    check(cache)
    cache.pool.free_blocks(cache.pool.get_new_blocks(cache.pool.get_num_free_blocks()))
    assert cached(cache, prompt(1, 2)) == 2
    check(cache)
    cache.end(both[0][0])


@pytest.mark.parametrize("policy", ["Hotness", "Lfu"])
def test_frequent_prefix_outlives_recent_one(policy: str) -> None:
    cache = Cache(14, policy)
    for _ in range(6):
        cache.serve(prompt(1, 2, 3))
    for other in range(10, 20):
        cache.serve(prompt(other, other, other, other))
    assert cached(cache, prompt(1, 2, 3)) == 3
    assert Cache(14, None).order is None


def test_vllm_order_keeps_recent_blocks() -> None:
    cache = Cache(14, None)
    for _ in range(6):
        cache.serve(prompt(1, 2, 3))
    for other in range(10, 20):
        cache.serve(prompt(other, other, other, other))
    assert cached(cache, prompt(1, 2, 3)) == 0


def test_reset_clears_order_and_serving_continues() -> None:
    cache = Cache(16, "Rlt")
    cache.serve(prompt(1, 2, 3))
    running = cache.start(prompt(4, 5))
    assert running is not None
    assert not cache.manager.reset_prefix_cache()
    assert cached(cache, prompt(1, 2, 3)) == 3
    cache.end(running[0])
    assert cache.manager.reset_prefix_cache()
    assert cache.order.tree.cached == 0
    assert cache.counters.get("evictions", "reset") == 5
    check(cache)
    assert cache.serve(prompt(1, 2, 3)) == 0
    assert cache.serve(prompt(1, 2, 3)) == 3 * BLOCK
    check(cache)


def test_uncached_blocks_are_reused_first() -> None:
    cache = Cache(12)
    cache.serve(prompt(1, 2))
    cache.serve(prompt(3, 4, 5))
    inner = next(block for block in cache.pool.blocks if block.block_hash_num_tokens == 2 * BLOCK)
    cache.pool.evict_blocks({inner.block_id})
    check(cache, cut=True)
    assert free_list(cache.pool)[0] is inner


def test_sliding_window_keeps_its_lru_share() -> None:
    """Hot prefixes must not evict all blocks of the windows, nor may they stay only because the windows' blocks are
    evicted first."""
    cache = Cache(60, windows=1)
    for number in range(40):
        cache.serve(prompt(1, 2, 3, 100 + number, number))
        check(cache)
    assert cached(cache, prompt(1, 2, 3, 139, 39)) >= 3
    counts = {label: cache.counters.get("evictions", label) for label in ("Hotness", "other")}
    assert min(counts.values()) > 10, counts


HOOKS = ("make_room", "cached", "touched", "freed", "uncached", "reset")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("late", [False, True])
def test_failing_hook_restores_vllm_order_without_loss(hook: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """late: the hook fails after its work, so the other parts are in the state that they have in the middle of an
    operation."""
    cache, own = Cache(14), getattr(EvictionOrder, hook)
    first, second = cache.start(prompt(1, 2, 3)), cache.start(prompt(1, 2, 4))
    assert first is not None
    assert second is not None

    def fail(*args: Any, **kwargs: Any) -> None:
        if late:
            own(*args, **kwargs)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(EvictionOrder, hook, fail)
    cache.end(first[0])
    cache.serve(prompt(1, 2, 5))
    cache.pool.evict_blocks({1})
    cache.end(second[0])
    cache.manager.reset_prefix_cache()
    assert not cache.guard.on
    assert type(cache.pool) is BlockPool
    assert cache.counters.get("failures", "eviction") == 1
    assert len(free_list(cache.pool)) == 13
    for other in range(10, 20):
        assert cache.serve(prompt(other, other, other)) == 0
    assert cache.serve(prompt(19, 19, 19)) == 3 * BLOCK
    check(cache)


def test_policy_that_evicts_block_in_use_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(8, "Lru")
    running = cache.start(prompt(1, 2))
    assert running is not None
    cache.serve(prompt(3, 4))
    (held,) = [run for run in cache.order.tree.runs() if run.busy]
    monkeypatch.setattr(cache.order.tree.policy, "victim", lambda now: held)
    cache.pool.free_blocks(cache.pool.get_new_blocks(4))  # `free_blocks` is read while the order is still valid
    assert not cache.guard.on
    assert cached(cache, prompt(1, 2)) == 2
    cache.end(running[0])
    assert len(free_list(cache.pool)) == 7


def test_order_needs_prefix_cache() -> None:
    cache = Cache(8, None)
    cache.pool.enable_caching = False
    _install(cache)
    assert type(cache.pool) is BlockPool
    assert "prefix caching is off" in cache.guard.reason


def test_other_block_pool_is_not_changed() -> None:
    cache = Cache(8, "Lru")
    assert type(cache.pool) is OrderedPool
    _install(cache)
    assert not cache.guard.on
    assert "OrderedPool" in cache.guard.reason


def test_missing_vllm_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(8, None)
    monkeypatch.setattr(surface, "SURFACE", {BlockPool: ("touch(blocks, twice)", "no_such_method")})
    del cache.pool.null_block
    problems = surface.problems(cache.scheduler)
    assert len(problems) == 3, problems
    assert any("no_such_method" in problem for problem in problems)


def test_unknown_policy_error_lists_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="Hotness"):
        Cache(8, "Mru")


def _install(cache: Cache) -> None:
    import random

    from plumage.settings.engine_policies import EvictionConfig
    from plumage_engine.vllm.eviction.ordered_pool import install

    install(cache.scheduler, EvictionConfig(), cache.guard, cache.counters, random.Random(0), lambda: 0.0)


def test_pool_hotness_breaks_ties() -> None:
    for kept in (1, 2):
        cache, hotness = Cache(14), PoolHotness(lambda: 0.0)
        use_pool_hotness(cache.scheduler, hotness.prior)
        name = cache.request(prompt(kept, 5, 6)).block_hashes[0]
        hotness.update({int.from_bytes(name[-8:], "big"): 200.0})
        for first in (1, 2):
            cache.serve(prompt(first, 5, 6))
        for other in range(10, 12):
            cache.serve(prompt(other, other, other, other))
        assert cached(cache, prompt(kept, 5, 6)) > cached(cache, prompt(3 - kept, 5, 6))
        check(cache)


@pytest.mark.parametrize("policy", ["Lfu", None])
def test_other_policies_do_not_read_pool_hotness(policy: str | None) -> None:
    cache = Cache(14, policy)

    def never(key: int) -> float:
        raise AssertionError(key)

    use_pool_hotness(cache.scheduler, never)
    for other in range(10, 20):
        cache.serve(prompt(other, other, other, other))


@pytest.mark.parametrize("salts", [("tenant", "flood"), (None, None)])
def test_flood_of_a_tenant_does_not_evict_its_neighbours_blocks(salts: tuple[str | None, str | None]) -> None:
    """The salts of requests name the tenants. Without them the same flood evicts the neighbour's prompt."""
    cache, (ours, flood) = Cache(40), salts
    for _ in range(4):
        cache.serve(prompt(1, 2, 3), ours)
    for number in range(60):
        cache.serve(prompt(*range(100 + 4 * number, 104 + 4 * number)), flood)
        if number % 10 == 0:
            cache.serve(prompt(5, 6), ours)
    cache.serve(prompt(7, 8, 9), ours)  # used once, before the flood goes on for two caches of blocks
    for number in range(60, 80):
        cache.serve(prompt(*range(100 + 4 * number, 104 + 4 * number)), flood)
    check(cache)
    request = cache.request(prompt(7, 8, 9), ours)
    assert int(cache.manager.get_computed_blocks(request)[1]) // BLOCK == (3 if ours else 0)
