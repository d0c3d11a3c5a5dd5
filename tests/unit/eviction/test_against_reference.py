"""RLT in both forms, 2Q and TTL against models that keep single blocks in plain sets and lists, and search them.

Every request adds at most one block, so each block is a run of its own and the models only need blocks. Requests run
one after another: each takes its path into use, makes room for one more block, caches it, and ends.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.events import BlockEvent, Removed
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.eviction.rlt import Rlt
from plumage_bench.baselines.eviction.classic import Ttl
from plumage_bench.baselines.eviction.rlt_code import RltCode
from plumage_bench.baselines.eviction.twoq import TwoQ

Path = list[int]
BASE = 64  # a block's number is its path, one digit per level


def requests(seed: int, count: int) -> Iterator[tuple[Path, float]]:
    """Paths in a deep, a bushy or a flat tree, each after its own prefixes, with gaps of up to three seconds."""
    rng, now = random.Random(seed), 0.0
    depth, width = rng.choice([(5, 3), (2, 7), (1, 40)])
    for _ in range(count):
        node, path = 1, []
        for _ in range(rng.randint(1, depth)):
            node = node * BASE + min(rng.randrange(width), rng.randrange(width))
            path.append(node)
            now += rng.uniform(0.01, 3.0)
            yield path[:], now


class Model(ABC):
    """used, inserted: last use and insertion time by cached block. A block's parent is its number without the last
    digit.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: dict[int, float] = {}
        self.inserted: dict[int, float] = {}

    def serve(self, path: Path, now: float) -> None:
        known = [block for block in path if block in self.used]
        assert path[: len(known)] == known
        assert len(path) - len(known) <= 1
        for block in known:
            self.used[block] = now
            self.touched(block)
        for block in path[len(known) :]:
            if len(self.used) == self.capacity:
                self.drop(self.victim(self.leaves(path), now))
            self.used[block] = self.inserted[block] = now
            self.added(block)

    def leaves(self, held: Path) -> list[int]:
        """Evictable blocks: cached, not in use, and without a child."""
        parents = {block // BASE for block in self.used}
        return [block for block in self.used if block not in parents and block not in held]

    def drop(self, block: int) -> None:
        del self.used[block], self.inserted[block]

    @abstractmethod
    def victim(self, leaves: list[int], now: float) -> int: ...

    def touched(self, block: int) -> None:
        """A cached block is used."""

    def added(self, block: int) -> None:
        """A block was cached."""


class SlowTtl(Model):
    """The expired leaf unused longest; if none has expired, the leaf cached first."""

    ttl = 12.0

    def victim(self, leaves: list[int], now: float) -> int:
        expired = [leaf for leaf in leaves if self.used[leaf] + self.ttl <= now]
        if expired:
            return min(expired, key=self.used.__getitem__)
        return min(leaves, key=self.inserted.__getitem__)


class SlowTwoQ(Model):
    """Johnson and Shasha's full version: `new` is A1in, `gone` A1out, everything else cached is Am."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.new: list[int] = []
        self.gone: list[int] = []

    def added(self, block: int) -> None:
        if block not in self.gone:
            self.new.append(block)

    def victim(self, leaves: list[int], now: float) -> int:
        new = [leaf for leaf in leaves if leaf in self.new]
        main = [leaf for leaf in leaves if leaf not in self.new]
        if new and (len(self.new) > self.capacity * 0.25 or not main):
            return min(new, key=self.inserted.__getitem__)
        return min(main, key=self.used.__getitem__)

    def drop(self, block: int) -> None:
        super().drop(block)
        if block in self.new:
            self.new.remove(block)
            self.gone = [other for other in self.gone if other != block] + [block]
            self.gone = self.gone[-max(1, int(self.capacity * 0.5)) :]


class SlowRlt(Model):
    """KVRouting's Algorithm 1: `marked` is its marking set. The policy draws which unmarked leaf it evicts. The model
    follows that draw, and rejects any other choice.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.marked: set[int] = set()
        self.phase = 1
        self.drawn: list[int] = []

    def touched(self, block: int) -> None:
        self.mark(block)

    def mark(self, block: int) -> None:
        self.marked.add(block)
        if len(self.marked) == self.capacity:
            self.phase += 1
            self.marked = {block}

    def added(self, block: int) -> None:
        self.mark(block)

    def victim(self, leaves: list[int], now: float) -> int:
        unmarked = [leaf for leaf in leaves if leaf not in self.marked]
        if not unmarked:  # the erratum: the rest is in use, or a parent
            self.phase += 1
            self.marked, unmarked = set(), leaves
        drawn = self.drawn.pop(0)
        assert drawn in unmarked
        return drawn


class SlowRltCode(SlowRlt):
    """The authors' code: use alone marks nothing."""

    def touched(self, block: int) -> None:
        return


class Pool:
    """The real pool under the same requests. evicted: by the last request."""

    def __init__(self, capacity: int, policy: EvictionPolicy) -> None:
        self.evicted: list[int] = []
        self.pool = BlockPool(capacity, policy, self._see)

    def _see(self, event: BlockEvent) -> None:
        if isinstance(event, Removed):
            self.evicted.extend(event.hashes)

    def serve(self, path: Path, now: float) -> None:
        self.evicted.clear()
        known = self.pool.pin(path, now)
        assert self.pool.allocate(len(path) - known, now)
        self.pool.commit(path[known:], path[known - 1] if known else None, now)
        self.pool.release(path, 0, now)

    def cached(self) -> set[int]:
        return {entry.block for entry in self.pool.snapshot()}


@pytest.mark.parametrize("name", ["Ttl", "TwoQ"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 30))
def test_same_blocks_stay_cached(name: str, seed: int, capacity: int) -> None:
    model: Model = SlowTtl(capacity) if name == "Ttl" else SlowTwoQ(capacity)
    pool = Pool(capacity, Ttl(SlowTtl.ttl) if name == "Ttl" else TwoQ(capacity))
    for path, now in requests(seed, 80):
        pool.serve(path, now)
        model.serve(path, now)
        assert pool.cached() == set(model.used)


@pytest.mark.parametrize("name", ["Rlt", "RltCode"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 30))
def test_rlt_has_the_marks_and_phases_of_the_model_and_evicts_allowed_leaves(
    name: str, seed: int, capacity: int
) -> None:
    policy, model = (
        (Rlt(capacity, random.Random(seed)), SlowRlt(capacity))
        if name == "Rlt"
        else (RltCode(capacity, random.Random(seed)), SlowRltCode(capacity))
    )
    pool = Pool(capacity, policy)
    for path, now in requests(seed, 60):
        pool.serve(path, now)
        model.drawn = list(pool.evicted)
        model.serve(path, now)
        assert not model.drawn
        assert pool.cached() == set(model.used)
        marked = {block for run in pool.pool.tree.runs() if run.rank == policy.phase for block in run.hashes}
        assert (marked, policy.marked, policy.phase) == (model.marked, len(model.marked), model.phase)


def test_requests_reach_the_rules_of_the_models() -> None:
    """Leaves expire or do not, blocks return from A1out, and phases start by need."""
    ttl, queues, rlt = SlowTtl(12), SlowTwoQ(12), SlowRlt(12)
    policy = Rlt(12, random.Random(1))
    pool, expired, by_age, long_term = Pool(12, policy), 0, 0, 0
    for path, now in requests(1, 200):
        if path[-1] not in ttl.used and len(ttl.used) == 12:
            oldest = min(ttl.used[leaf] for leaf in ttl.leaves(path))
            expired, by_age = expired + (oldest + ttl.ttl <= now), by_age + (oldest + ttl.ttl > now)
        ttl.serve(path, now)
        long_term += path[-1] not in queues.used and path[-1] in queues.gone
        queues.serve(path, now)
        pool.serve(path, now)
        rlt.drawn = list(pool.evicted)
        rlt.serve(path, now)
    assert min(expired, by_age, long_term, rlt.phase) > 5


def _marked(policy: Rlt, pool: Pool) -> list[Path]:
    return [run.hashes for run in pool.pool.tree.runs() if run.rank == policy.phase]


def test_authors_rlt_marks_a_split_but_not_a_whole_match() -> None:
    """The printed form marks [1, 2] and [3, 4] alike."""
    policy = RltCode(10, random.Random(1))
    pool = Pool(20, policy)
    pool.serve([1, 2, 3, 4], 0.0)
    policy._start_phase()
    pool.serve([1, 2, 3, 4], 1.0)
    assert (_marked(policy, pool), policy.marked) == ([], 0)
    pool.serve([1, 2], 2.0)
    assert (_marked(policy, pool), policy.marked) == ([[1, 2]], 2)
    pool.serve([1, 2, 9], 3.0)
    assert (_marked(policy, pool), policy.marked) == ([[1, 2], [9]], 3)


@pytest.mark.parametrize(("form", "phases"), [(Rlt, 1), (RltCode, 2)])
def test_authors_rlt_starts_a_phase_when_too_few_blocks_are_unmarked(form: type[Rlt], phases: int) -> None:
    """Six of eight blocks are marked and three must be evicted. In the printed form two unmarked ones suffice."""
    policy = form(8, random.Random(1))
    pool = Pool(8, policy)
    pool.serve([1, 2], 0.0)
    policy._start_phase()
    for block in range(3, 9):
        pool.serve([block], float(block))
    assert (policy.phase, policy.marked) == (2, 6)
    policy.need(3)
    assert policy.phase == 1 + phases
    policy.need(2)
    assert policy.phase == 1 + phases
