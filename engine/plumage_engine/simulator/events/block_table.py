"""The cached blocks with their token ids: it makes KV events and snapshots.

A block pool stores hashes only. An agent may start after the engine and then needs a snapshot. So this table stores the
parent, token ids and keys of each cached block, until the last copy in any medium is removed. The pools bound it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plumage.blocks.events import GPU, BlockEvent, Cleared, Removed, Stored
from plumage_engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, ExtraKeys, Row, encode_snapshot

__all__ = ["BlockTable", "Origin"]

_GROUP = 0  # one KV cache group, full attention
_KIND = "full_attention"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where blocks come from: the whole token sequence of a request, and what its hashes were chained with."""

    token_ids: Sequence[int]
    adapter: str | None = None
    salt: str | None = None

    def extra_keys(self, block: int) -> ExtraKeys:
        """vLLM's untagged keys of one block: the adapter, and in the first block the salt."""
        keys = [key for key in (self.adapter, self.salt if block == 0 else None) if key]
        return tuple(keys) or None


@dataclass(slots=True)
class _Block:
    parent: int | None
    token_ids: list[int]
    lora_name: str | None
    extra_keys: ExtraKeys
    copies: dict[str, int] = field(default_factory=dict)


class BlockTable:
    """Blocks by hash, counted per medium."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, event: BlockEvent, origin: Origin | None = None, first: int = 0) -> Event:
        """Apply an event of the pool, and return vLLM's form of it.

        origin, first: the sequence whose blocks are stored, and the position of the first one. origin is None for
        blocks that another medium has already."""
        if isinstance(event, Stored):
            return self._store(event, origin, first)
        if isinstance(event, Removed):
            for block in event.hashes:
                self._drop(block, event.medium)
            return BlockRemoved(list(event.hashes), event.medium, _GROUP)
        assert isinstance(event, Cleared)
        for block in list(self._blocks):
            self._lose(block, GPU)
        return AllBlocksCleared()

    def snapshot(self) -> Iterator[Row]:
        """Every block, parents first."""
        done: set[int] = set()
        for block in self._blocks:
            for link in self._chain(block, done):
                done.add(link)
                entry = self._blocks[link]
                for medium, copies in entry.copies.items():
                    yield Row(
                        link, entry.parent, entry.token_ids, medium, _GROUP, entry.lora_name, entry.extra_keys, copies
                    )

    def encode(self, next_sequence: int) -> bytes:
        """The snapshot as bytes, valid after all batches below `next_sequence`."""
        return encode_snapshot(next_sequence, self._size, list(self.snapshot()))

    def _chain(self, block: int | None, done: set[int]) -> list[int]:
        """The block and those above it that are known and not done, topmost first."""
        chain: list[int] = []
        while block is not None and block not in done and block in self._blocks:
            chain.append(block)
            block = self._blocks[block].parent
        return chain[::-1]

    def _store(self, event: Stored, origin: Origin | None, first: int) -> BlockStored:
        parent = event.parent
        blocks: list[_Block] = []
        for position, block in enumerate(event.hashes, first):
            entry = self._blocks.get(block)
            if entry is None:
                assert origin is not None, "an unknown block needs an origin"
                ids = list(origin.token_ids[position * self._size : (position + 1) * self._size])
                entry = self._blocks[block] = _Block(parent, ids, origin.adapter, origin.extra_keys(position))
            entry.copies[event.medium] = entry.copies.get(event.medium, 0) + 1
            blocks.append(entry)
            parent = block
        name = blocks[0].lora_name
        return BlockStored(
            block_hashes=list(event.hashes),
            parent_block_hash=event.parent,
            token_ids=[token for entry in blocks for token in entry.token_ids],
            block_size=self._size,
            lora_id=1 if name else None,
            medium=event.medium,
            lora_name=name,
            extra_keys=[entry.extra_keys for entry in blocks],
            group_idx=_GROUP,
            kv_cache_spec_kind=_KIND,
        )

    def _drop(self, block: int, medium: str) -> None:
        entry = self._blocks[block]
        if entry.copies[medium] > 1:
            entry.copies[medium] -= 1
        else:
            self._lose(block, medium)

    def _lose(self, block: int, medium: str) -> None:
        """The last copy in a medium is gone."""
        entry = self._blocks[block]
        entry.copies.pop(medium, None)
        if not entry.copies:
            del self._blocks[block]
