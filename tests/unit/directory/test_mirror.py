"""The router's mirror against a slow dictionary, and its bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plumage.directory import refill as refill_module
from plumage.directory.mirror import SHARDS, Mirror
from plumage.directory.strides import Strides
from plumage.errors import ConfigurationError, StateError

RNG = random.Random(7)
# A tree of chains that share prefixes: what prompts look like. 64-bit values in all shards.
ROOTS = [[RNG.getrandbits(64) for _ in range(3)] for _ in range(3)]
CHAINS = [root + [RNG.getrandbits(64) for _ in range(4)] for root in ROOTS for _ in range(3)]
CHUNKS = sorted({chunk for chain in CHAINS for chunk in chain})
SLOTS = st.integers(0, 4)
DEPTHS = {chunk: depth + 1 for chain in CHAINS for depth, chunk in enumerate(chain)}


def tokens_at(chunk: int) -> int:
    return DEPTHS[chunk] * 61


def lapse_all(mirror: Mirror, now: float) -> None:
    for _ in mirror.lapse(now):
        pass


class SlowMirror:
    """The contract, written down without any thought of speed."""

    def __init__(self) -> None:
        self.said: dict[int, set[int]] = {}  # slot -> chunks its engine holds
        self.hoped: dict[int, dict[int, float]] = {}  # slot -> pending chunk -> until

    def holds(self, slot: int, chunk: int) -> bool:
        return chunk in self.said.get(slot, ()) or chunk in self.hoped.get(slot, ())

    def match(self, chain: Sequence[int]) -> dict[int, int]:
        found = {}
        for slot in {*self.said, *self.hoped}:
            depth = 0
            while depth < len(chain) and self.holds(slot, chain[depth]):
                depth += 1
            if depth:
                found[slot] = depth
        return found


class MirrorMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, fast and slow mirror match alike."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.now = Mirror(), SlowMirror(), 0.0
        self.filling: int | None = None  # the slot whose snapshot is being made whole

    @rule(slot=SLOTS, chunk=st.sampled_from(CHUNKS))
    def add(self, slot: int, chunk: int) -> None:
        self.fast.apply(slot, [(chunk, 1, tokens_at(chunk))])
        self.slow.said.setdefault(slot, set()).add(chunk)
        self.slow.hoped.get(slot, {}).pop(chunk, None)

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS), depth=st.integers(1, 7))
    def add_prefix(self, slot: int, chain: list[int], depth: int) -> None:
        for chunk in chain[:depth]:
            self.add(slot, chunk)

    @rule(slot=SLOTS, chunk=st.sampled_from(CHUNKS))
    def remove(self, slot: int, chunk: int) -> None:
        self.fast.apply(slot, [(chunk, 0, 0)])
        self.slow.said.setdefault(slot, set()).discard(chunk)

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS), ttl=st.sampled_from([1.0, 3.0]), after_match=st.booleans())
    def hold(self, slot: int, chain: list[int], ttl: float, after_match: bool) -> None:
        self.lapse()
        hoped, said = self.slow.hoped.setdefault(slot, {}), self.slow.said.get(slot, ())
        first = 0
        if after_match:
            self.fast.match(chain)
            first = self.slow.match(chain).get(slot, 0)
            while first and chain[first - 1] not in said:
                first -= 1
        else:
            chain = list(chain)  # one that was not matched
        self.fast.hold_pending(chain, slot, self.now, ttl)
        hoped.update({chunk: self.now + ttl for chunk in chain[first:] if chunk not in said})

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS))
    def drop(self, slot: int, chain: list[int]) -> None:
        self.fast.drop_pending(chain, slot)
        for chunk in chain:
            self.slow.hoped.get(slot, {}).pop(chunk, None)

    @rule(passed=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.lapse()

    def lapse(self) -> None:
        lapse_all(self.fast, self.now)
        for hoped in self.slow.hoped.values():
            for chunk in [chunk for chunk, until in hoped.items() if until <= self.now]:
                del hoped[chunk]

    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def replace(self, slot: int, chunks: set[int]) -> None:
        refill = self.fast.refill(slot)
        refill.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        refill.commit()
        self.slow.said[slot] = set(chunks)
        for chunk in chunks:
            self.slow.hoped.get(slot, {}).pop(chunk, None)

    @precondition(lambda self: self.filling is None)
    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def begin_to_carry(self, slot: int, chunks: set[int]) -> None:
        refill = self.fast.refill(slot)
        refill.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        self.filling, self.chunks, self.snapshot, self.steps = slot, chunks, refill, refill.carry()

    @precondition(lambda self: self.filling is not None)
    @rule(steps=st.integers(1, 4))
    def carry(self, steps: int) -> None:
        """The router goes on to decide, and its requests to fail, between the steps."""
        for _ in islice(self.steps, steps):
            pass
        self.confirmed_by_snapshot()

    def confirmed_by_snapshot(self) -> None:
        """An engine's word ends what was only expected."""
        hoped, left = self.slow.hoped.get(self.filling, {}), self.fast._pending.of(self.filling)
        for chunk in [chunk for chunk in hoped if chunk in self.chunks and chunk not in left]:
            del hoped[chunk]
            self.slow.said.setdefault(self.filling, set()).add(chunk)

    @precondition(lambda self: self.filling is not None)
    @rule(whole=st.booleans())
    def end_carrying(self, whole: bool) -> None:
        if whole:
            for _ in self.steps:
                pass
            self.snapshot.commit()
            self.slow.said[self.filling] = set(self.chunks)
            for chunk in self.chunks:
                self.slow.hoped.get(self.filling, {}).pop(chunk, None)
        else:
            self.snapshot.abandon()
        self.filling = None

    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def give_up_a_snapshot(self, slot: int, chunks: set[int]) -> None:
        refill = self.fast.refill(slot)
        refill.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        refill.abandon()

    @rule(slot=SLOTS)
    def forget(self, slot: int) -> None:
        self.fast.forget(slot)
        if slot == self.filling:
            self.filling = None
        self.slow.said.pop(slot, None)
        self.slow.hoped.pop(slot, None)

    @rule(steps=st.integers(1, SHARDS))
    def sweep(self, steps: int) -> None:
        for _ in range(steps):
            self.fast.sweep()

    @invariant()
    def same_matches(self) -> None:
        for chain in CHAINS:
            expected = self.slow.match(chain)
            found = self.fast.match(chain)
            assert {slot: chunks for slot, (chunks, _) in found.items()} == expected

    @invariant()
    def holds_are_counted(self) -> None:
        assert self.fast.pending == sum(map(len, self.slow.hoped.values()))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refill_module, "PIECE", 2)


TestMirrorAgainstSlowMirror = MirrorMachine.TestCase
TestMirrorAgainstSlowMirror.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


class StridingMachine(MirrorMachine):
    """With strides so short that the chains have some."""

    def __init__(self) -> None:
        super().__init__()
        self.fast._strides = Strides(self.fast._shards, 2)


TestStridingMirrorAgainstSlowMirror = StridingMachine.TestCase
TestStridingMirrorAgainstSlowMirror.settings = TestMirrorAgainstSlowMirror.settings


def held(chain: Sequence[int], per_chunk: int = 64) -> list[tuple[int, int, int]]:
    return [(chunk, 1, per_chunk * (depth + 1)) for depth, chunk in enumerate(chain)]


def test_counts_tokens_as_the_engines_counted_them() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain, 64))
    mirror.apply(1, held(chain[:3], 64))
    assert mirror.match(chain) == {0: (7, 448), 1: (3, 192)}
    assert mirror.match(chain[:2]) == {0: (2, 128), 1: (2, 128)}
    assert mirror.match([]) == {}
    assert mirror.match(CHAINS[8]) == {}


def test_a_hole_ends_a_match() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain))
    mirror.apply(0, [(chain[2], 0, 0)])
    assert mirror.match(chain) == {0: (2, 128)}


def test_a_move_to_another_tier_keeps_the_owner_and_takes_the_new_count() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain[:1], 64))
    mirror.apply(0, [(chain[0], 2, 70)])
    assert mirror.match(chain) == {0: (1, 70)}


def test_guesses_tokens_of_pending_chunks_from_what_is_known_of_the_chain() -> None:
    mirror, chain = Mirror(tokens_per_chunk=50), CHAINS[0]
    mirror.apply(0, held(chain[:2], 80))
    mirror.hold_pending(chain, 1, 0.0, 1.0)
    assert mirror.match(chain)[1] == (7, 560)
    other = CHAINS[8]
    mirror.hold_pending(other, 1, 0.0, 1.0)
    assert mirror.match(other) == {1: (7, 350)}


def test_many_holds_end_in_steps_and_none_is_left() -> None:
    mirror = Mirror()
    chains = [[RNG.getrandbits(64) for _ in range(3)] for _ in range(20)]
    for chain in chains:
        mirror.hold_pending(chain, 0, 0.0, 1.0)
    lapsing = mirror.lapse(1.0)
    next(lapsing)
    found = [bool(mirror.match(chain)) for chain in chains]
    assert found == sorted(found), "the oldest end first"
    assert 0 < sum(found) < len(chains)
    assert len(list(lapsing)) < len(chains)
    assert (mirror.pending, len(mirror)) == (0, 0)


def test_an_event_replaces_a_guessed_count() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    mirror.apply(0, held(chain, 70))
    lapse_all(mirror, 100.0)
    assert mirror.match(chain) == {0: (7, 490)}


def test_a_hold_right_after_a_match_sees_what_lapsed_or_left_in_between() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    assert mirror.match(chain)[0][0] == 7
    mirror.hold_pending(chain, 0, 5.0, 1.0)
    assert mirror.match(chain)[0][0] == 7
    mirror.apply(0, held(chain))
    mirror.match(chain)
    mirror.forget(0)
    mirror.hold_pending(chain, 0, 6.0, 1.0)
    assert mirror.pending == 7


def test_a_burst_renews_its_hold() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 2.0)
    mirror.hold_pending(chain, 0, 1.5, 2.0)
    lapse_all(mirror, 2.5)
    assert mirror.match(chain)[0][0] == 7
    lapse_all(mirror, 3.5)
    assert mirror.match(chain) == {}
    assert mirror.pending == 0


def test_a_lane_is_wiped_before_it_is_used_again() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    for slot in range(20):
        mirror.apply(slot, held(chain))
        mirror.forget(slot)
        for _ in range(SHARDS):
            mirror.sweep()
    mirror.apply(99, held(CHAINS[8][:1]))
    assert mirror.match(chain) == {}
    assert not mirror.sweep()
    assert len(mirror) == 1, "what nobody holds any more is gone"


def test_many_replicas() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    for slot in range(1000):
        mirror.apply(slot, held(chain[: 1 + slot % 7]))
    found = mirror.match(chain)
    assert found == {slot: (1 + slot % 7, 64 * (1 + slot % 7)) for slot in range(1000)}


def test_stays_within_its_bound_and_drops_the_coldest() -> None:
    rng = random.Random(3)
    mirror = Mirror(capacity=SHARDS * 100)
    hot = [rng.getrandbits(64) for _ in range(20)]
    mirror.apply(0, held(hot))
    early = [rng.getrandbits(64) for _ in range(20)]
    mirror.apply(0, held(early))
    for _ in range(400):
        mirror.apply(0, held([rng.getrandbits(64) for _ in range(100)]))
        mirror.match(hot)
        mirror.settle()
        assert len(mirror) <= SHARDS * 100
    assert mirror.match(hot) == {0: (20, 20 * 64)}
    assert mirror.match(early) == {}
    assert mirror.evicted > 30_000


def test_no_chunk_outlives_its_parent_when_a_matched_chain_goes_cold() -> None:
    rng = random.Random(4)
    mirror = Mirror(capacity=SHARDS * 50)
    mirror.apply(0, held([rng.getrandbits(64) for _ in range(SHARDS * 40)]))
    chain = [rng.getrandbits(64) & (1 << 58) - 1 for _ in range(20)]  # all in one shard
    mirror.apply(0, held(chain))
    mirror.match(chain)
    mirror.settle()
    depths = []
    while mirror.match(chain):
        mirror._touched.clear()
        depths.append(mirror.match(chain)[0][0])
        mirror._touched.clear()
        mirror.apply(0, [(rng.getrandbits(64) & (1 << 58) - 1, 1, 1) for _ in range(5)])
    assert depths == sorted(depths, reverse=True)
    assert all(mirror.match([chunk]) == {} for chunk in chain)


def test_pending_owners_are_bounded() -> None:
    rng = random.Random(5)
    mirror = Mirror(capacity=6400)
    for number in range(1000):
        mirror.hold_pending([rng.getrandbits(64) for _ in range(32)], number % 4, 0.0, 1e9)
    assert mirror.pending <= 6400 // 4 + 32
    assert len(mirror) <= 6400


def test_says_what_is_wrong_with_its_use() -> None:
    with pytest.raises(ConfigurationError, match="at least 64"):
        Mirror(capacity=3)
    refill = Mirror().refill(0)
    refill.commit()
    with pytest.raises(StateError, match="start another"):
        refill.add([])


def test_what_is_kept_of_a_stride_ends_with_every_kind_of_change() -> None:
    """Two owners of a chain that was matched often; then one of them changes, each time in another way."""
    chain = [chunk << 50 for chunk in range(1, 17)]
    told = [(chunk, 1, 64 * depth) for depth, chunk in enumerate(chain, 1)]

    def both() -> Mirror:
        mirror = Mirror()
        mirror.apply(1, told)
        mirror.hold_pending(chain, 0, 0.0, 5.0)
        assert [mirror.match(chain) for _ in range(3)] == 3 * [{0: (16, 1024), 1: (16, 1024)}]
        return mirror

    mirror = both()
    mirror.refill(0).commit()  # the hold is carried over to another lane
    assert set(mirror.match(chain)) == {0, 1}

    mirror = both()
    mirror.hold_pending(chain, 2, 0.0, 5.0)
    assert set(mirror.match(chain)) == {0, 1, 2}
    lapse_all(mirror, 5.0)
    assert set(mirror.match(chain)) == {1}

    mirror = both()
    mirror.apply(1, [(chain[5], 0, 0)])
    assert mirror.match(chain) == {0: (16, 1024), 1: (5, 320)}

    mirror = both()
    mirror.apply(1, [(chain[15], 1, 1030)])
    assert mirror.match(chain)[1] == (16, 1030)

    mirror = both()
    mirror.forget(1)
    while mirror.sweep():
        pass
    mirror.apply(3, [(7, 1, 64)])  # takes the lane that was wiped
    assert set(mirror.match(chain)) == {0}
