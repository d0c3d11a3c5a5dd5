"""Golden KV events of real vLLM (tests/vllm/fleet writes and checks them).

The agent reads them, the simulator sends the same bytes, and the record of cached blocks lists the same blocks.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plumage_engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
    decode_snapshot,
    encode_batch,
)
from plumage_engine.vllm.routes.block_record import BlockRecord, encode

GOLDENS = [
    bytes.fromhex(batch) for batch in json.loads((Path(__file__).parent / "vllm_events.json").read_text())["batches"]
]
EVENTS = [event for payload in GOLDENS for event in decode_batch(payload).events]


def test_goldens_have_each_kind_of_event() -> None:
    assert {type(event) for event in EVENTS} == {BlockStored, BlockRemoved, AllBlocksCleared}
    stored = [event for event in EVENTS if isinstance(event, BlockStored)]
    assert any(event.parent_block_hash is not None for event in stored)
    assert [event.extra_keys[0] for event in stored if event.extra_keys and event.extra_keys[0]] == [["tenant"]]
    counts = Counter(key for event in stored for key in event.block_hashes)
    assert max(counts.values()) > 1, "a block that was cached twice"


def test_agent_reads_all_events() -> None:
    for event in EVENTS:
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == event.block_size * len(event.block_hashes) > 0
            assert (event.block_size, event.medium, event.group_idx) == (32, "GPU", 0)
            assert event.kv_cache_spec_kind == "full_attention"
        elif isinstance(event, BlockRemoved):
            assert (event.medium, event.group_idx) == ("GPU", 0)


@pytest.mark.parametrize("payload", GOLDENS, ids=range(len(GOLDENS)))
def test_simulator_sends_the_same_bytes(payload: bytes) -> None:
    """Byte for byte, except for fields that vLLM has and the simulator never sets."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    made = encode_batch(EventBatch(ts, [_simulated(event) for event in events], rank))
    assert made == payload


def _simulated(event: dict[str, Any]) -> Any:
    kinds = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved}
    kind = kinds.get(event["type"], AllBlocksCleared)
    return kind(**{name: value for name, value in event.items() if name != "type"})


def test_record_has_the_blocks_that_the_events_leave() -> None:
    record, held = BlockRecord(100), Counter[Any]()
    for event in EVENTS:
        if isinstance(event, BlockStored):
            record.stored(event)
            held.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            record.removed(event)
            held.subtract(event.block_hashes)
        else:
            record.cleared()
            held.clear()
        rows = decode_snapshot(encode(record.rows(), seq=0, block_size=32)).blocks
        assert Counter({row.block_hash: row.copies for row in rows}) == +held
    assert record.strays == 0
    assert len(held) == 1
