"""Stored forms: packed records, versions, keys, held chunks, the schedule of buckets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.directory import schema
from plumage.directory.publisher.bucket_schedule import AT_ONCE, LOG_LEAST, BucketSchedule
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.schema import (
    BUCKETS,
    Beat,
    Change,
    Keys,
    Load,
    NewerSchemaError,
    PoolKeys,
    SchemaError,
    State,
    Tier,
)
from plumage.errors import ConfigurationError

CHUNKS = st.integers(0, 2**64 - 1)
CHANGES = st.lists(
    st.builds(Change, st.sampled_from([3, 5, 2**63, 2**64 - 1]), st.sampled_from(list(Tier)), st.integers(0, 10**8)),
    max_size=30,
)


@given(CHANGES)
def test_held_chunks_counts_and_digests_in_any_order(changes: list[Change]) -> None:
    held_chunks, held, count, digest = HeldChunks(), {}, 0, 0
    for change in changes:
        _, more, added = schema.unpack_records(held_chunks.record([change]))
        count, digest = count + more, (digest + added) % 2**64
        held[change.chunk] = change.tier
    present = {chunk for chunk, tier in held.items() if tier}
    assert held_chunks.count == count == len(present)
    assert held_chunks.digest == digest == sum(present) % 2**64


@given(CHANGES)
def test_snapshot_equals_the_log(changes: list[Change]) -> None:
    held_chunks, state = HeldChunks(), {}
    for change in changes:
        for chunk, tier, tokens in schema.unpack_records(held_chunks.record([change]))[0]:
            state[chunk] = (tier, tokens)
    found = {}
    for number in range(BUCKETS):
        seq, records = schema.unpack_bucket(held_chunks.bucket(number, 9))
        assert seq == 9
        for chunk, tier, tokens in schema.unpack_records(records)[0]:
            assert chunk >> schema.BUCKET_SHIFT == number
            found[chunk] = (tier, tokens)
    assert found == {chunk: value for chunk, value in state.items() if value[0]}


def test_repetition_changes_nothing() -> None:
    held_chunks = HeldChunks()
    assert held_chunks.record([Change(1, Tier.GPU, 64)]) != b""
    assert held_chunks.record([Change(1, Tier.GPU, 64)]) == b""
    assert held_chunks.record([Change(2, Tier.GONE)]) == b""
    assert held_chunks.record([Change(1, Tier.HOST, 64)]) != b"", "another tier is a change"


def test_held_chunks_are_bounded() -> None:
    held_chunks = HeldChunks(capacity=10)
    held_chunks.record(Change(chunk, Tier.GPU, 1) for chunk in range(100))
    assert (held_chunks.count, held_chunks.refused) == (10, 90)
    held_chunks.record([Change(0, Tier.GONE), Change(99, Tier.GPU, 1)])
    assert (held_chunks.count, held_chunks.refused) == (10, 90)


def test_records_and_entries_follow_the_schema_page() -> None:
    held_chunks = HeldChunks()
    held_chunks.record([Change(0x0102030405060708, Tier.GPU, 1)])
    record = held_chunks.record([Change(0x0102030405060708, Tier.HOST, 0xABCDEF)])
    assert record.hex() == "0807060504030201" + "efcdab12"
    assert schema.pack_bucket(7, [record]).hex() == "01" + "0700000000000000" + record.hex()
    assert schema.pack_entry(record, (2, 3)) == {"v": 1, "r": record, "c": bytes([2] + [0] * 7 + [3] + [0] * 7)}
    records, check = schema.read_entry({b"v": b"1", b"r": record, b"c": bytes([2] + [0] * 7 + [3] + [0] * 7)})
    assert (records, check) == (record, (2, 3))


def test_token_counts_beyond_the_form_are_clamped() -> None:
    changes, _, _ = schema.unpack_records(HeldChunks().record([Change(1, Tier.GPU, 2**30)]))
    assert changes == [(1, Tier.GPU, 2**24 - 1)]


@pytest.mark.parametrize("version", [b"2", b"99"])
def test_newer_schema_is_recognized(version: bytes) -> None:
    with pytest.raises(NewerSchemaError, match="reads up to 1"):
        schema.read_entry({b"v": version, b"r": b""})
    with pytest.raises(NewerSchemaError):
        Beat.from_hash({b"v": version})
    with pytest.raises(NewerSchemaError):
        schema.unpack_bucket(bytes([int(version)]) + bytes(8))


@pytest.mark.parametrize(
    "found",
    [{}, {b"v": b"x"}, {b"v": b"1"}, {b"v": b"1", b"epoch": b"1.a", b"state": b"77", b"seq": b"1", b"count": b"0"}],
)
def test_invalid_heartbeat_is_refused(found: dict[bytes, bytes]) -> None:
    with pytest.raises(SchemaError):
        Beat.from_hash(found)


def test_torn_values_are_refused() -> None:
    with pytest.raises(SchemaError, match="13 bytes long"):
        schema.unpack_records(bytes(13))
    with pytest.raises(SchemaError, match="bucket of 3 bytes"):
        schema.unpack_bucket(b"\x01ab")
    with pytest.raises(SchemaError, match="check mark of 2"):
        schema.read_entry({b"v": b"1", b"c": b"ab"})


def test_heartbeat_reads_back_as_written() -> None:
    beat = Beat("4.beef", State.DRAINING, Load(3, 1, 0.25), 17, 4, 2**64 - 1, "model@16")
    carried = {name.encode(): str(value).encode() for name, value in beat.to_hash().items()}
    assert Beat.from_hash(carried) == beat


def test_unknown_fields_of_another_release_are_ignored_and_missing_ones_have_a_default() -> None:
    fields = {b"v": b"1", b"epoch": b"4.beef", b"state": b"1", b"seq": b"0", b"count": b"0", b"digest": b"0"}
    assert Beat.from_hash({**fields, b"prefill_tokens": b"800.0"}) == Beat("4.beef", State.READY)


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ("m@" + "0" * 16, "m@" + "0" * 16, False),
        ("m@" + "0" * 16, "m@" + "1" * 16, True),
        ("m@" + "0" * 16, "n@" + "0" * 16, True),
        ("m@" + "0" * 16, "m", False),
        ("m@" + "0" * 16, "", False),
        ("", "m@" + "0" * 16, False),
    ],
    ids=["same", "other folder", "other model", "before fingerprints", "not reported", "not asked"],
)
def test_engines_differ_where_both_report_their_identity(ours: str, theirs: str, apart: bool) -> None:
    assert schema.are_apart(ours, theirs) is apart


def test_keys_of_one_replica_share_a_slot() -> None:
    keys = Keys("chat", "chat-0")
    tags = {key[key.index("{") : key.index("}")] for key in (keys.beat, keys.epoch, keys.snap("1.a"), keys.log("1.a"))}
    assert tags == {"{chat/chat-0"}
    assert keys.beat == "plumage:v1:{chat/chat-0}:beat"
    assert PoolKeys("chat").work == "plumage:v1:{chat}:work"


@pytest.mark.parametrize("name", ["", "a}b", "a b", "{x", "-x", "é", "x" * 300])
def test_names_that_would_break_a_key_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be part of a directory key"):
        Keys("chat", name)
    with pytest.raises(ConfigurationError, match="pool"):
        PoolKeys(name)


@pytest.mark.parametrize(("writes", "largest"), [(5000, 2000), (300, 400_000), (20, 4 << 20)])
def test_buckets_are_rewritten_in_turn_and_the_log_stays_short(writes: int, largest: int) -> None:
    rng, schedule = random.Random(1), BucketSchedule()
    held, sizes, longest, kept = 100_000, [0], 0, 0
    first = 1
    for seq in range(1, writes):
        sizes.append(rng.randint(largest // 170, largest))
        kept += sizes[seq]
        logged, rewritten = sizes[seq], 0
        while due := schedule.due(logged, held):
            logged, rewritten = 0, rewritten + len(due)
            for number in due:
                schedule.seqs[number] = seq
        assert rewritten <= BUCKETS, "more than all of them is useless"
        while first < schedule.trim_before:
            kept -= sizes[first]
            first += 1
        longest = max(longest, kept)
    target = max(LOG_LEAST, held * 12 // 4)
    assert target / 2 < longest < target * (1 + 2 * AT_ONCE / BUCKETS) + 2 * largest
    assert min(schedule.seqs) > 0
