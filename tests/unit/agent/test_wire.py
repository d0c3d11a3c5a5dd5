"""Every form in which vLLM sends its events, and messages in no known form."""

from __future__ import annotations

import msgspec
import pytest

from plumage_engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireError,
    decode_batch,
    decode_snapshot,
)

encode = msgspec.msgpack.encode
STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}
CLEARED = {"type": "AllBlocksCleared"}
EXPECTED = [
    BlockStored([2**64 - 1, 7], None, [1, 2, 3, 4], 2, None, "GPU", None, [["salt"], None], 0, "full_attention"),
    BlockRemoved([7], "GPU", 0),
    AllBlocksCleared(),
]


def as_array(event: dict[str, object]) -> list[object]:
    return list(event.values())


@pytest.mark.parametrize(
    "batch",
    [
        [1.5, [STORED, REMOVED, CLEARED], 0],
        [1.5, [STORED, REMOVED, CLEARED]],
        {"ts": 1.5, "events": [STORED, REMOVED, CLEARED], "data_parallel_rank": 0},
        [1.5, [as_array(STORED), as_array(REMOVED), as_array(CLEARED)], None],
        [1.5, [STORED, {"type": "BlockPromoted", "block_hashes": [1]}, REMOVED, CLEARED], 0],
    ],
    ids=["today", "no rank", "batch as a map", "events as arrays", "an event of a later version"],
)
def test_all_forms_read_the_same(batch: object) -> None:
    decoded = decode_batch(encode(batch))
    assert decoded.ts == 1.5
    assert decoded.events == EXPECTED


def test_hashes_may_be_bytes() -> None:
    event = {**STORED, "block_hashes": [b"x" * 32, b"y" * 32], "parent_block_hash": b"p" * 32}
    [stored] = decode_batch(encode([0.0, [event]])).events
    assert isinstance(stored, BlockStored)
    assert stored.parent_block_hash == b"p" * 32


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        encode(7),
        encode([]),
        encode([1.0]),
        encode(["soon", []]),
        encode([1.0, [3]]),
        encode([1.0, [[]]]),
        encode([1.0, [{"type": "BlockStored"}]]),
        encode([1.0, [{**STORED, "token_ids": [-1]}]]),
        encode([1.0, [{**STORED, "block_size": -16}]]),
        encode([1.0, [{**STORED, "token_ids": "text"}]]),
    ],
)
def test_invalid_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(payload)


def test_snapshot_is_read() -> None:
    rows = [[1, None, [5, 6], "GPU", 0, None, ["salt"], 2], [2, 1, [7, 8], "CPU", None, None, None, 1]]
    snapshot = decode_snapshot(encode({"v": 1, "seq": 12, "block_size": 2, "blocks": rows, "later": "field"}))
    assert (snapshot.seq, snapshot.block_size) == (12, 2)
    assert [(row.block_hash, row.parent, row.extra_keys, row.copies) for row in snapshot.blocks] == [
        (1, None, ["salt"], 2),
        (2, 1, None, 1),
    ]


@pytest.mark.parametrize("payload", [b"<html>", encode({"v": 2, "seq": 0, "block_size": 2, "blocks": []})])
def test_unreadable_snapshot_is_an_error(payload: bytes) -> None:
    with pytest.raises(WireError, match="snapshot"):
        decode_snapshot(payload)
