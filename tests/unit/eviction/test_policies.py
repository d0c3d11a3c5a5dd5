"""Each eviction policy chooses as its definition says, compared with slow definitions where possible."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.eviction_chains import misses, paths, serve

from plumage.blocks.pool import BlockPool
from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy, policy_options
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.lru import Lru
from plumage.eviction.rlt import LeafSet, Rlt


def slow_leaf_lru(capacity: int, chains: list[list[int]]) -> int:
    """Misses of leaf-LRU, block by block: it evicts the leaf used longest ago."""
    used: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    count = 0
    for now, blocks in enumerate(chains):
        known = next((i for i, block in enumerate(blocks) if block not in used), len(blocks))
        held = set(blocks[:known])
        while len(used) + len(blocks) - known > capacity:
            inner = {parent[block] for block in used}
            leaf = min((b for b in used if b not in inner and b not in held), key=lambda b: used[b])
            del used[leaf]
        for index, block in enumerate(blocks):
            parent[block] = blocks[index - 1] if index else None
            used[block] = now
        count += len(blocks) - known
    return count


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 30))
def test_lru_evicts_as_the_slow_leaf_lru(seed: int, capacity: int) -> None:
    chains = paths(seed, 60)
    assert misses(make_policy("Lru", capacity=capacity, rng=random.Random(1)), capacity, chains) == slow_leaf_lru(
        capacity, chains
    )


def test_rlt_evicts_no_marked_leaf_while_an_unmarked_one_exists() -> None:
    policy = Rlt(20, random.Random(3))
    pool = BlockPool(20, policy)
    for now, blocks in enumerate(paths(4, 400)):
        if pool.available >= 6 and pool.tree.leaves:
            unmarked = [leaf for leaf in pool.tree.leaves if leaf.rank != policy.phase]
            victim = policy.victim(float(now))
            assert not unmarked or victim in unmarked
        serve(pool, blocks, float(now))
        assert policy.marked <= 20


def test_rlt_starts_a_phase_when_as_many_blocks_are_marked_as_the_cache_holds() -> None:
    policy = Rlt(4, random.Random(1))
    pool = BlockPool(10, policy)
    for now, block in enumerate([1, 2, 3, 1, 2]):
        serve(pool, [block], float(now))
    assert (policy.phase, policy.marked) == (1, 3), "only distinct blocks count"
    serve(pool, [4], 6.0)
    assert (policy.phase, policy.marked) == (2, 1), "all marks cleared but the latest"
    assert [run.hashes for run in pool.tree.leaves if run.rank == policy.phase] == [[4]]


def test_rlt_erratum_phase_starts_when_all_unmarked_leaves_are_pinned() -> None:
    policy = Rlt(100, random.Random(1))
    pool = BlockPool(3, policy)
    for block in (1, 2, 3):
        serve(pool, [block], 0.0)
    assert pool.pin([1], 1.0) == 1
    phase = policy.phase
    assert pool.allocate(1, 1.0)
    assert policy.phase == phase + 1
    assert pool.match([1]) == 1


def test_rlt_phase_that_ends_inside_a_run_counts_the_rest_of_it() -> None:
    policy = Rlt(10, random.Random(1))
    policy.insert(Run([1, 2, 3, 4, 5, 6, 7], None, 0.0), 0.0)
    policy.insert(Run([11, 12, 13, 14, 15], None, 0.0), 1.0)
    assert (policy.phase, policy.marked) == (2, 3), "three fill the phase; the latest of them and two more are marked"


def test_rlt_chooses_uniformly_and_repeats_by_seed() -> None:
    leaves = LeafSet()
    runs = [Run([block], None, 0.0) for block in range(5)]
    for run in runs:
        leaves.add(run)
    leaves.discard(runs[2])
    leaves.discard(runs[2])
    rng = random.Random(11)
    counts = Counter(leaves.pick(rng).hashes[0] for _ in range(8000))
    assert set(counts) == {0, 1, 3, 4}
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 16.3, "chi-square, 3 degrees, p = 0.001"
    chains = paths(9, 200)
    first, again = (misses(Rlt(15, random.Random(2)), 15, chains) for _ in range(2))
    assert first == again


def test_ghosts_forget_the_oldest_and_split_where_notes_change() -> None:
    ghosts: Ghosts[str] = Ghosts(4)
    ghosts.remember([1, 2], "a")
    ghosts.remember([3, 4, 5], "b")
    assert 1 not in ghosts
    assert len(ghosts) == 4
    assert ghosts.cuts([2, 3, 4, 9]) == [1, 3]
    assert ghosts.cuts([9, 3]) == []
    ghosts.remember(list(range(20, 40)), "c")
    assert len(ghosts) == 4


def test_ghosts_keep_the_newest_when_old_ones_are_renewed_and_cleared() -> None:
    capacity = 500  # several oldest notes are looked up at once
    ghosts: Ghosts[str] = Ghosts(capacity)
    ghosts.remember(range(capacity), "a")
    ghosts.remember([capacity], "a")
    ghosts.remember([-1], "a")  # from here on, some of the oldest are looked up already
    ghosts.remember([2, 3], "b")
    ghosts.remember([-2, -3, -4], "b")
    assert [block for block in range(8) if block in ghosts] == [2, 3, 7]
    ghosts.clear()
    ghosts.remember(range(capacity), "c")
    ghosts.remember([-1, -2], "c")
    assert len(ghosts) == capacity
    assert [block for block in range(4) if block in ghosts] == [2, 3]


def test_hotness_keeps_a_shared_prefix_and_evicts_private_tails() -> None:
    capacity = 40
    pool = BlockPool(capacity, Hotness(capacity))
    prefixes = [[1000 * group + i for i in range(8)] for group in (1, 2, 3)]
    tail = 10**6
    for now in range(60):
        own = list(range(tail, tail + 5))
        tail += 5
        serve(pool, prefixes[now % 3] + own, float(now))
    for scan in range(5):
        serve(pool, list(range(tail, tail + 10)), 100.0 + scan)
        tail += 10
    assert all(pool.match(prefix) == 8 for prefix in prefixes), "a scan of fresh prompts does not evict them"


def test_hotness_frequency_outlives_eviction() -> None:
    policy = Hotness(10, (0.5,))
    pool = BlockPool(10, policy)
    for now, tail in enumerate((50, 60, 70)):
        serve(pool, [1, 2, 3, tail], float(now))
    frequency = next(run.rank for run in pool.tree.runs() if run.hashes == [1, 2, 3])
    assert frequency >= 3
    assert pool.allocate(10, 9.0)
    pool.release([], 10, 9.0)
    serve(pool, [1, 2, 3, 80], 10.0)
    again = next(run for run in pool.tree.runs() if run.hashes == [1, 2, 3])
    assert again.rank == frequency + 1


def test_hotness_prefers_the_run_with_closer_uses_among_equally_used() -> None:
    """Both are used five times and evicted in between. The steady one is the older of the two when they compete."""
    capacity = 6
    policy = Hotness(capacity, (16.0,))
    pool = BlockPool(capacity, policy)
    steady, rare = [1, 2, 3], [4, 5, 6]
    fresh = 100

    def others(requests: int) -> None:
        nonlocal fresh
        for _ in range(requests):
            assert pool.allocate(capacity, 0.0)
            pool.release([], capacity, 0.0)
            serve(pool, list(range(fresh, fresh + capacity)), 0.0)
            fresh += capacity

    for _ in range(4):
        serve(pool, rare, 0.0)
        others(12)
    for _ in range(4):
        serve(pool, steady, 0.0)
        others(3)
    assert pool.match(steady) == pool.match(rare) == 0
    serve(pool, steady, 0.0)
    serve(pool, rare, 0.0)
    assert policy.victim(0.0).hashes == rare


def test_hotness_weighs_frequency_for_shared_prefixes_and_not_for_conversations() -> None:
    rng = random.Random(3)
    chatty = Hotness(200)
    pool = BlockPool(200, chatty)
    history: list[list[int]] = [[] for _ in range(12)]
    fresh = 0
    for now in range(600):
        client = rng.randrange(12)
        if len(history[client]) >= 64:
            history[client] = []
        history[client] = history[client] + list(range(fresh, fresh + 8))
        fresh += 8
        serve(pool, history[client], float(now))
    assert chatty.weight == 0
    shared = Hotness(200)
    pool = BlockPool(200, shared)
    for now in range(600):
        group = rng.randrange(20)
        serve(pool, [-1 - 20 * group - i for i in range(16)] + list(range(fresh, fresh + 6)), float(now))
        fresh += 6
    assert shared.weight >= 1


def test_printed_hotness_ranks_by_its_formula() -> None:
    policy = make_policy("HotnessPaper", capacity=50, rng=random.Random(1), block_tokens=1)
    pool = BlockPool(50, policy)
    serve(pool, [1], 0.0)
    serve(pool, [11, 12, 13], 1.0)
    assert policy.victim(1.0).hashes == [11, 12, 13], "1 + 255/3 is less than 1 + 255/1: long nodes first"


def test_printed_hotness_takes_other_formulas() -> None:
    priority = "clock + frequency / length"
    policy = make_policy("HotnessPaper", capacity=50, rng=random.Random(1), priority=priority, block_tokens=1)
    pool = BlockPool(50, policy)
    serve(pool, [1], 0.0)
    for now in range(2):
        serve(pool, [11, 12, 13], 1.0 + now)
    assert policy.victim(1.0).hashes == [11, 12, 13]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Hotness", {"weights": ()}),
        ("Hotness", {"weights": (1.0, -1.0)}),
        ("Hotness", {"memory": 0.0}),
        ("HotnessPaper", {"block_tokens": 0}),
        ("HotnessPaper", {"priority": "__import__('os')"}),
        ("Hotness", {"wieght": 1.0}),
        ("Rlt", {"wieght": 1.0}),
        ("HotnessPaper", {"fingerprint_bits": "8"}),
    ],
)
def test_wrong_option_is_named(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        make_policy(name, capacity=10, rng=random.Random(1), **options)


class Youngest(Lru):
    """A policy of a user, with a capacity and a setting, that draws no random numbers."""

    def __init__(self, capacity: int, share: float = 0.5) -> None:
        super().__init__()
        self.limit = capacity * share


def test_import_path_names_a_policy_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_eviction", sys.modules[__name__])
    policy = make_policy("own_eviction:Youngest", capacity=10, rng=random.Random(1), share=0.2)
    assert isinstance(policy, Youngest)
    assert policy.limit == 2.0
    assert policy_options("own_eviction:Youngest") == ["share"]
    assert misses(policy, 10, paths(1, 50)) == slow_leaf_lru(10, paths(1, 50))
    with pytest.raises(ConfigurationError, match="own_eviction:Youngest has no option shares"):
        make_policy("own_eviction:Youngest", capacity=10, rng=random.Random(1), shares=1.0)


def test_error_of_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'Mru'; there are: Lru, Rlt, .*, and package\.module:Class"):
        make_policy("Mru", capacity=10, rng=random.Random(1))
    assert policy_options("Mru") == []
