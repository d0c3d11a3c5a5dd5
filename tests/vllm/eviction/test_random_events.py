"""Random operations on vLLM's pool in any order: its list stays consistent, no block is lost, leaves are evicted before
their parents."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.vllm_blocks import BLOCK, Cache, check, free_list

from plumage_bench.baselines.eviction import POLICY_NAMES


def prompt(rng: random.Random) -> list[int]:
    """A path in a small tree: two prompts share the blocks of the common start of their paths."""
    blocks = [rng.choice("aab") for _ in range(rng.randint(1, 9))]
    return [ord(letter) for letter in blocks for _ in range(BLOCK)] + [1] * rng.randint(1, BLOCK)


class Drive:
    """Random requests on a small pool. Everything is checked after every step."""

    def __init__(self, policy: str, seed: int, *, windows: int = 0, rough: bool = False) -> None:
        self.rng = random.Random(seed)
        self.cache = Cache(self.rng.randint(16, 50) * (1 + windows), policy, windows=windows, seed=seed)
        self.running: list[Any] = []
        self.pins: list[Any] = []
        self.rough, self.cut = rough, False

    def run(self, steps: int = 80) -> None:
        for _ in range(steps):
            before = self.cache.names()
            self._step()
            check(self.cache, cut=self.cut)
            if not self.cut:
                self._no_orphans(before)
        assert self.cache.guard.on, self.cache.guard.reason
        self._end_all()

    def _step(self) -> None:
        if self.rough and self.rng.random() < 0.25:
            self._rough_step()
        elif not self.running or (len(self.running) < 4 and self.rng.random() < 0.5):
            started = self.cache.start(prompt(self.rng), self.rng.choice([BLOCK, 3 * BLOCK, 1000]))
            if started is not None:
                self.running.append(started[0])
        elif self.rng.random() < 0.6:
            request = self.rng.choice(self.running)
            if not self.cache.go_on(request, self.rng.randint(1, 2 * BLOCK)):
                self._end(self.running.index(request))
        else:
            self._end(self.rng.randrange(len(self.running)))

    def _rough_step(self) -> None:
        """What connectors and operators do: pin single blocks, remove blocks from the cache, reset it, move hashes."""
        pool, act = self.cache.pool, self.rng.randrange(5)
        cached = [block for block in pool.blocks if block.block_hash is not None]
        if act == 0 and cached:
            block = self.rng.choice(cached)
            pool.touch([block])
            self.pins.append(block)
            self.cut = True  # without other blocks vLLM takes free ones above it
        elif act == 1 and self.pins:
            pool.free_blocks([self.pins.pop(self.rng.randrange(len(self.pins)))])
        elif act == 2:
            pool.evict_blocks({self.rng.randrange(1, pool.num_gpu_blocks) for _ in range(2)})
            self.cut = True
        elif act == 3:
            self.cut &= not self.cache.manager.reset_prefix_cache()
        elif act == 4 and cached:
            self._pass_on(self.rng.choice(cached))

    def _pass_on(self, block: Any) -> None:
        """Copy on write: the hashes move to a new block."""
        pool = self.cache.pool
        if block.ref_cnt == 0 or not pool.get_num_free_blocks():
            return
        (other,) = pool.get_new_blocks(1)
        if block.block_hash is not None:
            pool.move_block_hashes(block, other)
            self.cut = True
        pool.free_blocks([other])

    def _end(self, index: int) -> None:
        self.cache.end(self.running.pop(index))

    def _end_all(self) -> None:
        while self.running:
            self._end(0)
        self.cache.pool.free_blocks(self.pins)
        check(self.cache, cut=self.cut)
        pool = self.cache.pool
        assert len(free_list(pool)) == pool.num_gpu_blocks - 1
        assert self.cache.order.tree.in_use == 0
        pool.free_blocks(pool.get_new_blocks(pool.num_gpu_blocks - 1))  # all of it can be evicted
        assert not self.cache.names()
        assert self.cache.order.tree.cached == 0
        assert not any(self.cache.order.state)

    def _no_orphans(self, before: dict[bytes, list[Any]]) -> None:
        """No block that this step evicted leaves a cached child behind."""
        after = self.cache.names()
        parents = self._parents()
        for name in after:
            if name[-4:] == bytes(4) and name in before:
                assert parents.get(name) is None or parents[name] in after, "an inner block was evicted"

    def _parents(self) -> dict[bytes, bytes]:
        runs = list(self.cache.order.tree.runs())
        found = {below: above for run in runs for above, below in zip(run.hashes, run.hashes[1:], strict=False)}
        return found | {run.hashes[0]: run.parent.hashes[-1] for run in runs if run.parent is not None}


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_requests_keep_order_valid(policy: str, seed: int) -> None:
    Drive(policy, seed).run()


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=12, deadline=None)
@example(seed=1800)  # a used copy that got its hash without an event, besides one that is being evicted
@example(seed=3258034)  # the policy chooses a block that was passed, since it had none in its place
@given(seed=st.integers(0, 2**32))
def test_random_pins_evictions_and_resets_keep_order_valid(policy: str, seed: int) -> None:
    Drive(policy, seed, rough=True).run()


@pytest.mark.parametrize("policy", ["Rlt", "Hotness"])
@pytest.mark.parametrize("windows", [1, 2])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), rough=st.booleans())
def test_sliding_window_groups_keep_order_valid(policy: str, windows: int, seed: int, rough: bool) -> None:
    Drive(policy, seed, windows=windows, rough=rough).run()
