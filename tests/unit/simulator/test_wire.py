"""KV events on the wire: the same bytes as vLLM's, and a record that keeps parents, tokens and copies."""

from __future__ import annotations

import msgspec
import pytest

from plumage.blocks.events import CPU, Cleared, Removed, Stored
from plumage_engine.kv_events import Event, EventBatch, encode_batch
from plumage_engine.simulator.events.block_table import BlockTable, Origin


@pytest.fixture
def table() -> BlockTable:
    return BlockTable(2)


def decoded(event: Event) -> object:
    _, (only,), rank = msgspec.msgpack.decode(encode_batch(EventBatch(1.5, [event], 0)))
    assert rank == 0
    return only


def test_stored_blocks_on_the_wire(table: BlockTable) -> None:
    event = table.apply(Stored((11, 12), None), Origin([1, 2, 3, 4, 5], "lora", "salt"), 0)
    assert decoded(event) == {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "lora",
        "extra_keys": [["lora", "salt"], ["lora"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_removed_and_cleared_on_the_wire(table: BlockTable) -> None:
    table.apply(Stored((11,), None), Origin([1, 2]), 0)
    assert decoded(table.apply(Removed((11,)))) == {
        "type": "BlockRemoved",
        "block_hashes": [11],
        "medium": "GPU",
        "group_idx": 0,
    }
    assert decoded(table.apply(Cleared())) == {"type": "AllBlocksCleared"}


def test_block_is_remembered_until_its_last_copy_in_any_medium_is_removed(table: BlockTable) -> None:
    origin = Origin([1, 2, 3, 4])
    table.apply(Stored((11, 12), None), origin, 0)
    table.apply(Stored((12,), 11), origin, 1)
    table.apply(Stored((12,), 11, CPU))
    table.apply(Removed((12,)))
    table.apply(Removed((12,)))
    snapshot = [[row.block_hash, row.parent, row.token_ids, row.medium, row.copies] for row in table.snapshot()]
    assert snapshot == [[11, None, [1, 2], "GPU", 1], [12, 11, [3, 4], "CPU", 1]]
    table.apply(Removed((12,), CPU))
    assert len(table) == 1


def test_host_copies_outlive_a_cleared_device(table: BlockTable) -> None:
    table.apply(Stored((11, 12), None), Origin([1, 2, 3, 4]), 0)
    table.apply(Stored((12,), 11), Origin([1, 2, 3, 4]), 1)
    table.apply(Stored((11,), None, CPU))
    table.apply(Cleared())
    assert [(row.block_hash, row.token_ids, row.medium) for row in table.snapshot()] == [(11, [1, 2], "CPU")]
    table.apply(Removed((11,), CPU))
    assert len(table) == 0


def test_parent_stored_after_its_child_still_comes_first(table: BlockTable) -> None:
    """A block may outlive its parent in host memory, and the parent may return."""
    origin = Origin([1, 2, 3, 4])
    table.apply(Stored((11, 12), None), origin, 0)
    table.apply(Stored((12,), 11, CPU))
    table.apply(Removed((12,)))
    table.apply(Removed((11,)))
    table.apply(Stored((11,), None), origin, 0)
    assert [row.block_hash for row in table.snapshot()] == [11, 12]


def test_snapshot_is_valid_at_the_last_batch_sent(table: BlockTable) -> None:
    table.apply(Stored((11,), None), Origin([1, 2]), 0)
    assert msgspec.msgpack.decode(table.encode(5)) == {
        "v": 1,
        "seq": 4,
        "block_size": 2,
        "blocks": [[11, None, [1, 2], "GPU", 0, None, None, 1]],
    }
