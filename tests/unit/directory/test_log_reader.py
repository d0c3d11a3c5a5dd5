"""A replica's log as a router reads it, without a server."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.backoff import Backoff
from plumage.directory.mirror.log_reader import LogReader, OutOfStep, StreamEntry, in_pieces
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.schema import BUCKETS, Beat, Change, NewerSchemaError, SchemaError, Tier, pack_entry

RNG = random.Random(5)
UNIVERSE = [RNG.getrandbits(64) for _ in range(60)]


class Replica:
    """A writer's held chunks and the log that it makes."""

    def __init__(self) -> None:
        self.held_chunks = HeldChunks()
        self.log: list[StreamEntry] = []

    @property
    def seq(self) -> int:
        return len(self.log)

    def step(self, *changes: Change) -> None:
        self._log(self.held_chunks.record(changes))

    def check(self) -> None:
        self._log(b"", (self.held_chunks.count, self.held_chunks.digest))

    def _log(self, records: bytes, check: tuple[int, int] | None = None) -> None:
        fields = pack_entry(records, check)
        as_read = {name.encode(): value if isinstance(value, bytes) else b"1" for name, value in fields.items()}
        self.log.append((f"{self.seq + 1}-0".encode(), as_read))


def load(reader: LogReader, replica: Replica, epoch: str = "1.a") -> None:
    reader.begin()
    for number in range(BUCKETS):
        list(reader.take_bucket(number, replica.held_chunks.bucket(number, replica.seq)))
    reader.buckets_done()
    list(reader.commit(epoch))


def following() -> tuple[Replica, LogReader, Mirror]:
    replica, mirror = Replica(), Mirror()
    reader = LogReader(mirror, 0)
    replica.step(*(Change(chunk, Tier.GPU, 1) for chunk in UNIVERSE[:20]))
    load(reader, replica)
    return replica, reader, mirror


CHANGES = st.lists(st.tuples(st.integers(0, 59), st.sampled_from(list(Tier))), min_size=1, max_size=8)


@given(st.lists(CHANGES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_buckets_of_different_times_and_the_log_give_one_snapshot(
    steps: list[list[tuple[int, Tier]]], rng: random.Random
) -> None:
    """The writer continues while its buckets are read, one after the other."""
    replica, mirror, truth = Replica(), Mirror(), set[int]()
    reader = LogReader(mirror, 0)
    reader.begin()
    moments = sorted(rng.randrange(BUCKETS + 1) for _ in steps)
    for number in range(BUCKETS + 1):
        while moments and moments[0] <= number:
            moments.pop(0)
            changes = [Change(UNIVERSE[index], tier, 1) for index, tier in steps[len(steps) - len(moments) - 1]]
            replica.step(*changes)
            replica.check()
            for chunk, tier, _ in changes:
                (truth.add if tier else truth.discard)(chunk)
        if number < BUCKETS:
            list(reader.take_bucket(number, replica.held_chunks.bucket(number, replica.seq)))
    reader.buckets_done()
    reader.catch_up(replica.log)
    list(reader.commit("1.a"))
    assert {chunk for chunk in UNIVERSE if mirror.match([chunk])} == truth
    assert (reader.count, reader.digest) == (replica.held_chunks.count, replica.held_chunks.digest)


def test_entries_seen_before_are_ignored() -> None:
    replica, reader, mirror = following()
    replica.step(Change(UNIVERSE[30]), Change(UNIVERSE[0], Tier.GONE))
    assert reader.take(replica.log) == 2
    assert reader.take(replica.log) == 0
    assert (reader.count, reader.digest) == (replica.held_chunks.count, replica.held_chunks.digest)
    assert mirror.match([UNIVERSE[30]]) == {0: (1, 0)}


def test_missing_entry_is_a_gap() -> None:
    replica, reader, mirror = following()
    replica.step(Change(UNIVERSE[30]))
    replica.step(Change(UNIVERSE[31]))
    with pytest.raises(OutOfStep, match="gap"):
        reader.take(replica.log[-1:])
    assert mirror.match([UNIVERSE[31]]) == {}


def test_check_mark_finds_a_difference() -> None:
    replica, reader, _ = following()
    replica.check()
    reader.take(replica.log)
    replica.held_chunks.digest ^= 1
    replica.check()
    with pytest.raises(OutOfStep, match="digest"):
        reader.take(replica.log)


def test_heartbeat_of_another_sequence_number_is_no_contradiction() -> None:
    _, reader, _ = following()
    now = {"seq": reader.seq, "count": reader.count, "digest": reader.digest}
    assert reader.agrees(Beat("1.a", **now))
    assert not reader.agrees(Beat("1.a", **{**now, "count": 7}))
    assert reader.agrees(Beat("1.a", **{**now, "count": 7, "seq": reader.seq + 1}))
    assert reader.agrees(Beat("2.b", **{**now, "count": 7}))


def test_long_log_is_read_in_pieces() -> None:
    replica, reader, mirror = following()
    for _ in range(100):
        replica.step(*(Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(100)))
    sizes = []
    for piece in in_pieces(replica.log):
        sizes.append(len(piece))
        reader.take(piece)
    assert (reader.seq, len(mirror)) == (replica.seq, 10_020)
    assert max(sizes) * 100 <= 4200, "about four thousand records at once"


def replica_view() -> tuple[Replica, ReplicaView]:
    replica, reader, _ = following()
    known = ReplicaView("p", "r0", reader, Backoff(random.Random(1)))
    known.loaded()
    return replica, known


def test_announced_entries_that_never_arrive_are_a_gap() -> None:
    _, known = replica_view()
    ahead = Beat("1.a", seq=known.reader.seq + 3)
    known.heard(ahead, 10.0)
    known.reads += 1  # it was under way before the heartbeat was written
    known.heard(ahead, 11.0)
    assert known.live
    known.reads += 1
    known.heard(ahead, 12.0)
    assert known.wanted == "gap"


def test_entries_that_were_not_read_yet_are_no_gap() -> None:
    _, known = replica_view()
    for now in (10.0, 20.0, 30.0):
        known.heard(Beat("1.a", seq=known.reader.seq + 3), now)
    assert known.live


def test_router_that_keeps_reading_misses_nothing() -> None:
    replica, known = replica_view()
    for now in range(10, 20):
        known.heard(Beat("1.a", seq=known.reader.seq + 3), float(now))
        replica.check()
        known.reader.take(replica.log)
        known.reads += 1
    assert known.live


@pytest.mark.parametrize("taken", [BUCKETS // 2, BUCKETS])
def test_abandoned_snapshot_is_never_used(taken: int) -> None:
    replica, mirror = Replica(), Mirror()
    reader = LogReader(mirror, 0)
    replica.step(*(Change(chunk, Tier.GPU, 64) for chunk in UNIVERSE))
    reader.begin()
    for number in range(taken):
        list(reader.take_bucket(number, replica.held_chunks.bucket(number, replica.seq)))
    reader.forget()
    rest = [
        reader.take_bucket(number, replica.held_chunks.bucket(number, replica.seq)) for number in range(taken, BUCKETS)
    ]
    with pytest.raises(OutOfStep, match="gone"):
        list(chain.from_iterable([*rest, reader.commit("1.a")]))
    assert reader.epoch is None
    assert [chunk for chunk in UNIVERSE if mirror.match([chunk])] == []


def test_abandoned_load_applies_no_log_to_the_mirror() -> None:
    replica, mirror = Replica(), Mirror()
    reader = LogReader(mirror, 0)
    reader.begin()
    for number in range(BUCKETS):
        list(reader.take_bucket(number, replica.held_chunks.bucket(number, replica.seq)))
    reader.buckets_done()
    replica.step(Change(UNIVERSE[0], Tier.GPU, 64))
    reader.abandon()
    with pytest.raises(OutOfStep, match="gone"):
        reader.catch_up(replica.log)
    assert mirror.match([UNIVERSE[0]]) == {}


def test_old_snapshot_is_used_until_the_new_one_is_complete() -> None:
    replica, reader, mirror = following()
    replica.step(*(Change(chunk, Tier.GONE) for chunk in UNIVERSE[:20]))
    reader.begin()
    list(reader.take_bucket(0, replica.held_chunks.bucket(0, replica.seq)))
    assert sum(bool(mirror.match([chunk])) for chunk in UNIVERSE) == 20
    reader.abandon()
    assert sum(bool(mirror.match([chunk])) for chunk in UNIVERSE) == 20
    load(reader, replica)
    assert sum(bool(mirror.match([chunk])) for chunk in UNIVERSE) == 0


def test_unreadable_entry_is_refused_before_it_is_applied() -> None:
    _, reader, mirror = following()
    with pytest.raises(NewerSchemaError):
        reader.take([(f"{reader.seq + 1}-0".encode(), {b"v": b"2", b"r": bytes(12)})])
    with pytest.raises(SchemaError):
        reader.take([(f"{reader.seq + 1}-0".encode(), {b"v": b"1", b"r": bytes(13)})])
    assert sum(bool(mirror.match([chunk])) for chunk in UNIVERSE) == 20


def test_pending_chunks_end_with_a_dead_engine() -> None:
    replica, reader, mirror = following()
    expected = [1 << 60, 2 << 60]
    mirror.hold_pending(expected, reader.slot, 0.0, 1e9)
    load(reader, replica)
    assert mirror.match(expected)[reader.slot][0] == 2, "a snapshot of the same epoch ends no hold"
    load(reader, replica, "2.b")
    assert mirror.match(expected) == {}
    assert mirror.pending == 0
    list(mirror.expire(2e9))
