"""What each cached block consists of: the content of snapshots.

vLLM's pool keeps hashes only. A reader of its KV events must be able to start late. So the engine records parent, token
ids and keys of each block from its own events, while a copy of the block is cached.

- Copies are counted per (hash, group, medium): vLLM publishes a block again when a second prefill computed it.
- A block that no event described counts as `missing` and is left out of snapshots. Such are blocks of host memory's
  short events, of a sparse group and beyond `capacity`. At most `capacity` of these are known by name; the copies of
  others are counted in `beyond`.
- `AllBlocksCleared` clears the record, host memory included, as readers of the events do.

Memory: about 550 bytes a block of 16 tokens (tests/unit/vllm_plugin checks for under 800), 440 for a block known by
its hash only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

__all__ = ["BlockRecord", "RemovedEvent", "Row", "StoredEvent", "encode"]

Key = tuple[int | bytes, int | None]
"""Hash and group."""


class StoredEvent(Protocol):
    """vLLM's BlockStored."""

    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: Sequence[int]
    block_size: int
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Any] | None
    group_idx: int | None


class RemovedEvent(Protocol):
    """vLLM's BlockRemoved."""

    block_hashes: list[Any]
    medium: str | None
    group_idx: int | None


@dataclass(slots=True)
class _Block:
    """ids: packed; None for a block that no event described.
    copies: by medium; replaced and never changed in place, so a snapshot can read it later.
    """

    parent: int | bytes | None
    ids: bytes | None
    lora_name: str | None
    extra_keys: Any
    copies: dict[str | None, int]


Row = tuple[Key, _Block, dict[str | None, int]]
"""A block as it was when the snapshot was taken."""


class BlockRecord:
    """capacity: maximum of described blocks, and of blocks known by their hash only.
    beyond: cached copies of blocks that are neither.
    strays: removals of blocks that were not cached according to the events.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.beyond = 0
        self.strays = 0
        self._undescribed = 0
        self._blocks: dict[Key, _Block] = {}

    def __len__(self) -> int:
        """Described blocks."""
        return len(self._blocks) - self._undescribed

    @property
    def missing(self) -> int:
        """Cached blocks that are not described."""
        return self._undescribed + self.beyond

    def stored(self, event: StoredEvent) -> None:
        """`event.medium` has one more copy of each of its blocks."""
        group, medium, parent = event.group_idx, event.medium, event.parent_block_hash
        for number, block_hash in enumerate(event.block_hashes):
            key = (block_hash, group)
            block = self._blocks.get(key)
            if block is None or block.ids is None:
                block = self._describe(key, block, parent, event, number)
            parent = block_hash
            if block is None:
                self.beyond += 1
                continue
            block.copies = {**block.copies, medium: block.copies.get(medium, 0) + 1}

    def removed(self, event: RemovedEvent) -> None:
        """`event.medium` has one copy less of each of its blocks."""
        for block_hash in event.block_hashes:
            key = (block_hash, event.group_idx)
            block = self._blocks.get(key)
            if block is None or event.medium not in block.copies:
                self._removed_unknown()
                continue
            block.copies = _without(block.copies, event.medium)
            if not block.copies:
                self._undescribed -= block.ids is None
                del self._blocks[key]

    def _removed_unknown(self) -> None:
        """Count a removal as one of `beyond`, as far as that can be known."""
        if self.beyond:
            self.beyond -= 1
        else:
            self.strays += 1

    def cleared(self) -> None:
        self._blocks.clear()
        self._undescribed = self.beyond = 0

    def rows(self) -> list[Row]:
        """All blocks as they are now, for `encode`. Cheap, so an engine's step does not wait for encoding."""
        return [(key, block, block.copies) for key, block in self._blocks.items()]

    def _describe(self, key: Key, block: _Block | None, parent: Any, event: StoredEvent, number: int) -> _Block | None:
        """Describe a block that was unknown or known by its hash only; None where the record is full."""
        size = event.block_size
        described = 0 < size * len(event.block_hashes) == len(event.token_ids) and len(self) < self.capacity
        if block is None:
            if not described and self._undescribed >= self.capacity:
                return None
            block = self._blocks[key] = _Block(None, None, None, None, {})
            self._undescribed += 1
        if described:
            block.parent, block.lora_name = parent, event.lora_name
            block.extra_keys = event.extra_keys[number] if event.extra_keys else None
            block.ids = array("I", event.token_ids[number * size : (number + 1) * size]).tobytes()
            self._undescribed -= 1
        return block


def encode(rows: Sequence[Row], *, seq: int, block_size: int, beyond: int = 0) -> bytes:
    """The snapshot as it is served (docs/explanation/directory.md), valid after the batch numbered `seq`.

    Parents precede their children. `missing` counts cached blocks that are not in it, including those `beyond` the
    record. Each row is encoded by itself, so that this thread yields to the engine's.
    """
    pack = msgspec.msgpack.Encoder().encode
    blocks = [msgspec.Raw(pack(row)) for row in _ordered(rows)]
    missing = beyond + sum(1 for _, block, _ in rows if block.ids is None)
    return pack({"v": 1, "seq": seq, "block_size": block_size, "blocks": blocks, "missing": missing})


def _ordered(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """[hash, parent, token ids, medium, group, adapter, extra keys, copies] of each block and medium."""
    known = {row[0]: row for row in rows if row[1].ids is not None}
    for key in list(known):
        for block_key, block, copies in _ancestors_first(known, key):
            ids = array("I", block.ids or b"").tolist()
            for medium, count in copies.items():
                yield [
                    block_key[0], block.parent, ids, medium, block_key[1], block.lora_name, block.extra_keys, count
                ]  # fmt: skip


def _ancestors_first(known: dict[Key, Row], key: Key) -> list[Row]:
    """The block and its ancestors that were not returned yet, topmost first; removes them from `known`."""
    chain: list[Row] = []
    while (row := known.pop(key, None)) is not None:
        chain.append(row)
        if row[1].parent is None:
            break
        key = (row[1].parent, key[1])
    return chain[::-1]


def _without(copies: dict[str | None, int], medium: str | None) -> dict[str | None, int]:
    """The copies with one less in `medium`."""
    left = dict(copies)
    left[medium] -= 1
    return left if left[medium] else {other: count for other, count in left.items() if other != medium}
