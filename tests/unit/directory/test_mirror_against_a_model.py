"""The router's mirror against a slow dictionary, under any sequence of operations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plumage.directory.mirror import mirror as mirror_module
from plumage.directory.mirror import staged_snapshot as staged_module
from plumage.directory.mirror.match_cache import MatchCache
from plumage.directory.mirror.mirror import SHARDS, Mirror
from plumage.directory.mirror.staged_snapshot import StagedSnapshot

RNG = random.Random(7)
# A tree of chains that share prefixes, as prompts do. 64-bit values in all shards.
ROOTS = [[RNG.getrandbits(64) for _ in range(3)] for _ in range(3)]
CHAINS = [root + [RNG.getrandbits(64) for _ in range(4)] for root in ROOTS for _ in range(3)]
CHUNKS = sorted({chunk for chain in CHAINS for chunk in chain})
SLOTS = st.integers(0, 4)
DEPTHS = {chunk: depth + 1 for chain in CHAINS for depth, chunk in enumerate(chain)}


def tokens_at(chunk: int) -> int:
    return DEPTHS[chunk] * 61


class SlowMirror:
    """The contract in its simplest form, without regard to speed."""

    def __init__(self) -> None:
        self.confirmed: dict[int, set[int]] = {}  # slot -> chunks that its engine holds
        self.pending: dict[int, dict[int, float]] = {}  # slot -> pending chunk -> end time

    def holds(self, slot: int, chunk: int) -> bool:
        return chunk in self.confirmed.get(slot, ()) or chunk in self.pending.get(slot, ())

    def match(self, chain: Sequence[int]) -> dict[int, int]:
        found = {}
        for slot in {*self.confirmed, *self.pending}:
            depth = 0
            while depth < len(chain) and self.holds(slot, chain[depth]):
                depth += 1
            if depth:
                found[slot] = depth
        return found


class MirrorMachine(RuleBasedStateMachine):
    """After any sequence of operations, the mirror and its model match alike."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.now = Mirror(), SlowMirror(), 0.0
        self.filling: int | None = None  # the slot whose snapshot is being loaded
        self.unlearned: set[int] = set()  # slots whose confirmed chunks upkeep must remove

    @rule(slot=SLOTS, chunk=st.sampled_from(CHUNKS))
    def add(self, slot: int, chunk: int) -> None:
        assume(slot != self.filling and slot not in self.unlearned)  # no log is applied while a snapshot takes over
        self.fast.apply(slot, [(chunk, 1, tokens_at(chunk))])
        self.slow.confirmed.setdefault(slot, set()).add(chunk)
        self.slow.pending.get(slot, {}).pop(chunk, None)

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS), depth=st.integers(1, 7))
    def add_prefix(self, slot: int, chain: list[int], depth: int) -> None:
        for chunk in chain[:depth]:
            self.add(slot, chunk)

    @rule(slot=SLOTS, chunk=st.sampled_from(CHUNKS))
    def remove(self, slot: int, chunk: int) -> None:
        assume(slot != self.filling and slot not in self.unlearned)
        self.fast.apply(slot, [(chunk, 0, 0)])
        self.slow.confirmed.setdefault(slot, set()).discard(chunk)

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS), ttl=st.sampled_from([1.0, 3.0]), after_match=st.booleans())
    def hold(self, slot: int, chain: list[int], ttl: float, after_match: bool) -> None:
        self.expire()
        pending, confirmed = self.slow.pending.setdefault(slot, {}), self.slow.confirmed.get(slot, ())
        first = 0
        if after_match:
            self.fast.match(chain)
            first = self.slow.match(chain).get(slot, 0)
            while first and chain[first - 1] not in confirmed:
                first -= 1
        else:
            chain = list(chain)  # one that was not matched
        self.fast.hold_pending(chain, slot, self.now, ttl)
        pending.update({chunk: self.now + ttl for chunk in chain[first:] if chunk not in confirmed})

    @rule(slot=SLOTS, chain=st.sampled_from(CHAINS))
    def drop(self, slot: int, chain: list[int]) -> None:
        self.fast.drop_pending(chain, slot)
        for chunk in chain:
            self.slow.pending.get(slot, {}).pop(chunk, None)

    @rule(passed=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.expire()

    def expire(self) -> None:
        list(self.fast.expire(self.now))
        for pending in self.slow.pending.values():
            for chunk in [chunk for chunk, until in pending.items() if until <= self.now]:
                del pending[chunk]

    def stage_snapshot(self, slot: int) -> StagedSnapshot:
        """Confirmed chunks are gone at once: none of them returns if the snapshot is abandoned."""
        staged = self.fast.stage_snapshot(slot)
        self.gone(slot)
        return staged

    def gone(self, slot: int) -> None:
        if slot in self.unlearned:
            self.unlearned.remove(slot)
            self.slow.confirmed.pop(slot, None)

    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def replace(self, slot: int, chunks: set[int]) -> None:
        staged = self.stage_snapshot(slot)
        staged.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        staged.commit()
        self.slow.confirmed[slot] = set(chunks)
        for chunk in chunks:
            self.slow.pending.get(slot, {}).pop(chunk, None)

    @precondition(lambda self: self.filling is None)
    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def begin_to_carry(self, slot: int, chunks: set[int]) -> None:
        staged = self.stage_snapshot(slot)
        staged.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        self.filling, self.chunks, self.snapshot, self.steps = slot, chunks, staged, staged.carry()

    @precondition(lambda self: self.filling is not None)
    @rule(steps=st.integers(1, 4))
    def carry(self, steps: int) -> None:
        """The router continues to decide between the steps, and its requests continue to fail."""
        for _ in islice(self.steps, steps):
            pass
        self.confirmed_by_snapshot()

    def confirmed_by_snapshot(self) -> None:
        """A confirmed chunk is not pending any more."""
        pending, left = self.slow.pending.get(self.filling, {}), self.fast._pending.of(self.filling)
        for chunk in [chunk for chunk in pending if chunk in self.chunks and chunk not in left]:
            del pending[chunk]
            self.slow.confirmed.setdefault(self.filling, set()).add(chunk)

    @precondition(lambda self: self.filling is not None)
    @rule(whole=st.booleans())
    def end_carrying(self, whole: bool) -> None:
        if whole:
            for _ in self.steps:
                pass
            self.snapshot.commit()
            self.slow.confirmed[self.filling] = set(self.chunks)
            for chunk in self.chunks:
                self.slow.pending.get(self.filling, {}).pop(chunk, None)
        else:
            self.snapshot.abandon()
        self.filling = None

    @rule(slot=SLOTS, chunks=st.sets(st.sampled_from(CHUNKS)))
    def give_up_a_snapshot(self, slot: int, chunks: set[int]) -> None:
        staged = self.stage_snapshot(slot)
        staged.add([(chunk, 1, tokens_at(chunk)) for chunk in chunks])
        staged.abandon()

    @rule(slot=SLOTS)
    def drop_confirmed(self, slot: int) -> None:
        assume(slot != self.filling and slot not in self.unlearned)
        self.fast.drop_confirmed(slot)
        self.unlearned.add(slot)
        if slot not in self.fast._dropping:
            assert len(self.slow.pending.get(slot, ())) <= 2, "upkeep has much left to do"
            self.gone(slot)

    @precondition(lambda self: self.unlearned)
    @rule(steps=st.integers(1, 6))
    def upkeep(self, steps: int) -> None:
        """Upkeep may stop before its end."""
        self.expire()
        for _ in islice(self.fast.upkeep(self.now), steps):
            pass
        for slot in [slot for slot in self.unlearned if slot not in self.fast._dropping]:
            self.gone(slot)

    @rule(slot=SLOTS)
    def forget(self, slot: int) -> None:
        self.fast.forget(slot)
        self.gone(slot)
        if slot == self.filling:
            self.filling = None
        self.slow.confirmed.pop(slot, None)
        self.slow.pending.pop(slot, None)

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
        assert self.fast.pending == sum(map(len, self.slow.pending.values()))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "PIECE", 2)
    monkeypatch.setattr(mirror_module, "PIECE", 2)


TestMirrorAgainstSlowMirror = MirrorMachine.TestCase
TestMirrorAgainstSlowMirror.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


class StridingMachine(MirrorMachine):
    """Matches so short that the chains have stored ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fast._table._matches = MatchCache(self.fast._table._shards, 2)


TestStridingMirrorAgainstSlowMirror = StridingMachine.TestCase
TestStridingMirrorAgainstSlowMirror.settings = TestMirrorAgainstSlowMirror.settings
