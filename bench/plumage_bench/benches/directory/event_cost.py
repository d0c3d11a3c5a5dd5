"""CPU time of an agent for a KV event: decode, index, hash, publish, without sockets.

`python -m plumage_bench.benches.directory.event_cost` prints microseconds per stored and per removed block, for batches
as vLLM sends them: long prefills, and decoding requests that fill a block now and then. The payloads are generated
beforehand, in vLLM's format. Limit: 15 µs a block event.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from plumage.models import resolve
from plumage.rendering import ByteTable, ModelFolder
from plumage_bench.unsent_writer import UnsentWriter
from plumage_engine.agent.directory.event_publisher import EventPublisher
from plumage_engine.agent.directory.throttle import Throttle
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.kv_events import decode_batch

__all__ = ["EventCost", "event_cost"]

BLOCK = 16
CHAIN = 64  # blocks of one prompt


@dataclass(frozen=True, slots=True)
class EventCost:
    """Microseconds of CPU per block event."""

    prefill_us: float
    decode_us: float
    removed_us: float

    @property
    def mean_us(self) -> float:
        """Every stored block is removed one day, and most are stored by prefill."""
        return (self.prefill_us + self.removed_us) / 2


@dataclass(slots=True)
class _Prompts:
    """Chains of blocks with random tokens of a real vocabulary."""

    rng: random.Random
    vocabulary: int
    made: list[list[int]] = field(default_factory=list)

    def prefill(self) -> list[bytes]:
        """One message for each prompt, with all its blocks in one event."""
        hashes = [self.rng.getrandbits(64) for _ in range(CHAIN)]
        self.made.append(hashes)
        return [_batch([self._stored(hashes, None)])]

    def decode(self) -> list[bytes]:
        """Sixteen requests; each fills a block in every message."""
        rows = [[self.rng.getrandbits(64) for _ in range(CHAIN // 16)] for _ in range(16)]
        self.made += rows
        parents: list[list[int | None]] = [[None, *row[:-1]] for row in rows]
        return [
            _batch([self._stored([row[step]], parent[step]) for row, parent in zip(rows, parents, strict=True)])
            for step in range(CHAIN // 16)
        ]

    def removals(self) -> list[bytes]:
        """Leaves first, as engines evict."""
        return [_batch([_removed(hashes[::-1])]) for hashes in reversed(self.made)]

    def _stored(self, hashes: Sequence[int], parent: int | None) -> dict[str, object]:
        return {
            "type": "BlockStored",
            "block_hashes": list(hashes),
            "parent_block_hash": parent,
            "token_ids": [self.rng.randrange(self.vocabulary) for _ in range(len(hashes) * BLOCK)],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(hashes),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }


def event_cost(blocks: int = 40_000, seed: int = 0) -> EventCost:
    """CPU time of this thread for about this many blocks of each kind, in a new index."""
    table = ByteTable.from_tokenizer_json(ModelFolder.load(resolve("builtin://tiny-chat")).tokenizer_json)
    prefill, removed = _measure(table, _Prompts(random.Random(seed), len(table.pieces)), blocks, "prefill")
    decode, _ = _measure(table, _Prompts(random.Random(seed), len(table.pieces)), blocks, "decode")
    return EventCost(prefill, decode, removed)


def _measure(table: ByteTable, prompts: _Prompts, blocks: int, kind: str) -> tuple[float, float]:
    made = [payload for _ in range(blocks // CHAIN) for payload in getattr(prompts, kind)()]
    holdings = EventPublisher(CacheIndex("bench", table), Throttle(1e9), UnsentWriter())
    stored = _apply(holdings, made)
    removed = _apply(holdings, prompts.removals())
    counted = holdings.index.counters
    if counted.stored != counted.removed or len(holdings.index):
        raise AssertionError(f"the index has a wrong count: {counted}")
    return stored / counted.stored * 1e6, removed / counted.removed * 1e6


def _apply(holdings: EventPublisher, payloads: Sequence[bytes]) -> float:
    started = time.thread_time()
    for payload in payloads:
        holdings.apply(decode_batch(payload))
        holdings.flush()
    return time.thread_time() - started


def _removed(hashes: Sequence[int]) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


def _batch(events: Sequence[dict[str, object]]) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


if __name__ == "__main__":
    cost = event_cost()
    sys.stdout.write(
        f"event_cost prefill_us={cost.prefill_us:.2f} decode_us={cost.decode_us:.2f} "
        f"removed_us={cost.removed_us:.2f} mean_us={cost.mean_us:.2f}\n"
    )
