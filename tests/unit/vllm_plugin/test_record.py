"""The record of cached blocks: its snapshots have exactly what the engine's events reported."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plumage_engine.kv_events import BlockRemoved, BlockStored, decode_snapshot
from plumage_engine.vllm.routes.block_record import BlockRecord, encode

SIZE = 4


def stored(hashes: list[int], parent: int | None = None, **named: Any) -> BlockStored:
    ids = [block_hash * 10 + place for block_hash in hashes for place in range(SIZE)]
    fields: dict[str, Any] = {"token_ids": ids, "block_size": SIZE, "medium": "GPU", "group_idx": 0, **named}
    return BlockStored(list(hashes), parent, **fields)


def removed(block_hash: int, medium: str = "GPU", group: int = 0) -> BlockRemoved:
    return BlockRemoved([block_hash], medium, group)


def rows(record: BlockRecord, seq: int = 7) -> list[list[Any]]:
    snapshot = decode_snapshot(encode(record.rows(), seq=seq, block_size=SIZE))
    assert (snapshot.seq, snapshot.block_size) == (seq, SIZE)
    return [list(msgspec.structs.astuple(row)) for row in snapshot.blocks]


def test_block_is_listed_with_parent_ids_keys_and_copies() -> None:
    record = BlockRecord(100)
    record.stored(stored([1, 2], None, lora_name="ada", extra_keys=[["ada", "salt"], ["ada"]]))
    record.stored(stored([2], 1, lora_name="ada", extra_keys=[["ada"]]))
    assert rows(record) == [
        [1, None, [10, 11, 12, 13], "GPU", 0, "ada", ["ada", "salt"], 1],
        [2, 1, [20, 21, 22, 23], "GPU", 0, "ada", ["ada"], 2],
    ]


def test_removed_copy_leaves_the_others() -> None:
    record = BlockRecord(100)
    record.stored(stored([1]))
    record.stored(stored([1]))
    record.stored(stored([1], medium="CPU"))
    record.removed(removed(1))
    assert [(row[3], row[7]) for row in rows(record)] == [("GPU", 1), ("CPU", 1)]
    record.removed(removed(1))
    assert [(row[3], row[7]) for row in rows(record)] == [("CPU", 1)]
    record.removed(removed(1, "CPU"))
    assert (rows(record), len(record)) == ([], 0)


def test_groups_are_separate() -> None:
    record = BlockRecord(100)
    record.stored(stored([1], group_idx=0))
    record.stored(stored([1], group_idx=1))
    record.removed(removed(1, group=0))
    assert [row[4] for row in rows(record)] == [1]


def test_parents_come_first_although_they_returned_later() -> None:
    record = BlockRecord(100)
    record.stored(stored([1, 2, 3]))
    record.removed(removed(1))
    record.stored(stored([1]))
    assert [row[0] for row in rows(record)] == [1, 2, 3]


def test_undescribed_block_is_counted_and_not_invented() -> None:
    record = BlockRecord(100)
    record.stored(BlockStored([5], None, [], 0, medium="CPU", group_idx=0))  # host memory's short event
    record.stored(stored([1, 2], token_ids=[1, 2, 3]))  # a sparse group's: ids of other blocks among them
    assert (rows(record), record.missing, len(record)) == ([], 3, 0)
    assert msgspec.msgpack.decode(encode(record.rows(), seq=0, block_size=SIZE))["missing"] == 3
    record.stored(stored([5]))  # now the device holds it as well, and describes it
    assert [(row[0], row[3]) for row in rows(record)] == [(5, "CPU"), (5, "GPU")]
    for block_hash in (1, 2):
        record.removed(removed(block_hash))
    assert record.missing == 0


def test_blocks_beyond_the_capacity_are_counted() -> None:
    record = BlockRecord(2)
    record.stored(stored([1, 2, 3]))
    assert ([row[0] for row in rows(record)], record.missing) == ([1, 2], 1)
    record.removed(removed(3))
    assert (record.missing, record.strays) == (0, 0)


def test_blocks_known_by_their_hash_are_bounded_too() -> None:
    record = BlockRecord(3)
    record.stored(stored([90, 91]))
    record.stored(BlockStored(list(range(50)), None, [], 0, medium="CPU", group_idx=0))
    assert len(record._blocks) == 2 + 3
    assert (len(record), record.missing, record.beyond) == (2, 50, 47)
    snapshot = encode(record.rows(), seq=0, block_size=SIZE, beyond=record.beyond)
    assert msgspec.msgpack.decode(snapshot)["missing"] == 50
    record.stored(stored([7]))  # one beyond the capacity, which the device describes
    assert [row[0] for row in rows(record)] == [90, 91, 7]
    for block_hash in range(50):
        record.removed(removed(block_hash, "CPU"))
    assert (record.missing, record.strays, len(record)) == (0, 0, 3)
    record.removed(removed(1, "CPU"))
    assert record.strays == 1


def test_removal_of_an_unknown_block_is_counted() -> None:
    record = BlockRecord(100)
    record.stored(stored([1]))
    record.removed(removed(1, "CPU"))
    record.removed(removed(9))
    assert (record.strays, len(record)) == (2, 1)


def test_record_is_empty_after_a_clear() -> None:
    record = BlockRecord(1)
    record.stored(stored([1, 2, 3]))
    assert (record.missing, record.beyond) == (2, 1)
    record.cleared()
    assert (len(record), record.missing, rows(record)) == (0, 0, [])


def test_taken_rows_do_not_change_while_the_engine_continues() -> None:
    record = BlockRecord(100)
    record.stored(stored([1, 2]))
    taken = record.rows()
    record.stored(stored([1]))
    record.removed(removed(2))
    record.stored(stored([3], 1))
    blocks = decode_snapshot(encode(taken, seq=0, block_size=SIZE)).blocks
    assert [(row.block_hash, row.copies) for row in blocks] == [(1, 1), (2, 1)]


@given(st.randoms(use_true_random=False))
def test_rows_equal_a_plain_count_after_any_history(rng: random.Random) -> None:
    record, held = BlockRecord(1000), Counter[tuple[int, str]]()
    for _ in range(60):
        if held and rng.random() < 0.4:
            block_hash, medium = rng.choice(sorted(held))
            record.removed(removed(block_hash, medium))
            held -= Counter({(block_hash, medium): 1})
        else:
            first, medium = rng.randrange(8), rng.choice(["GPU", "CPU"])
            chain = list(range(first, first + rng.randrange(1, 4)))
            record.stored(stored(chain, first - 1 if first else None, medium=medium))
            held.update((block_hash, medium) for block_hash in chain)
    listed = rows(record)
    assert {(row[0], row[3]): row[7] for row in listed} == dict(held)
    seen: set[int] = set()
    present = {row[0] for row in listed}
    for row in listed:
        assert row[1] is None or row[1] in seen or row[1] not in present
        seen.add(row[0])


def test_block_of_16_tokens_takes_no_more_memory_than_stated() -> None:
    rng = random.Random(0)
    events = [
        BlockStored([rng.getrandbits(64)], rng.getrandbits(64), list(range(16)), 16, medium="GPU", group_idx=0)
        for _ in range(5_000)
    ]
    record = BlockRecord(10_000)
    tracemalloc.start()
    for event in events:
        record.stored(event)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / len(events) < 800
