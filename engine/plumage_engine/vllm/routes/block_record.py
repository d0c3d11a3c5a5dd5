"""What each cached block is made of: the record behind snapshots.

vLLM's pool keeps hashes only. Whoever follows its KV events must be able to start late, so the engine notes of each
block its parent, token ids and keys as its own events tell them, for as long as a copy of it is cached anywhere.

- Copies are counted per (hash, group, medium): vLLM publishes a block again when a second prefill computed it.
- A block that no event described (host memory's short events, a sparse group's, or one beyond `capacity`) is counted as
  `missing` and left out of snapshots: its followers must not hold what nobody can tell. Of these too at most `capacity`
  are known by name; the copies of others are a number, `beyond`.
- `AllBlocksCleared` ends everything, host memory too, as whoever follows the events takes it.

Memory: about 550 bytes a block of 16 tokens (tests/unit/vllm_plugin holds under 800), 440 one known by its hash only.
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
    """ids: packed, None for a block that nobody described. copies: by medium, replaced and never changed in place, so
    that a snapshot may go on reading it."""

    parent: int | bytes | None
    ids: bytes | None
    lora_name: str | None
    extra_keys: Any
    copies: dict[str | None, int]


Row = tuple[Key, _Block, dict[str | None, int]]
"""A block as it was when the snapshot was taken."""


class BlockRecord:
    """capacity: blocks described at most, and blocks known by their hash only. beyond: copies in the cache of blocks
    that are neither. strays: removals of blocks that were not cached as far as the events told."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.beyond = 0
        self.strays = 0
        self._bare = 0
        self._blocks: dict[Key, _Block] = {}

    def __len__(self) -> int:
        """Blocks described."""
        return len(self._blocks) - self._bare

    @property
    def missing(self) -> int:
        """Cached blocks that are not described."""
        return self._bare + self.beyond

    def stored(self, event: StoredEvent) -> None:
        """One more copy of each of its blocks is in `event.medium`."""
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
        """One copy of each of its blocks left `event.medium`."""
        for block_hash in event.block_hashes:
            key = (block_hash, event.group_idx)
            block = self._blocks.get(key)
            if block is None or event.medium not in block.copies:
                self._removed_unknown()
                continue
            block.copies = _without(block.copies, event.medium)
            if not block.copies:
                self._bare -= block.ids is None
                del self._blocks[key]

    def _removed_unknown(self) -> None:
        """It was one of those beyond, as far as that can be known."""
        if self.beyond:
            self.beyond -= 1
        else:
            self.strays += 1

    def cleared(self) -> None:
        self._blocks.clear()
        self._bare = self.beyond = 0

    def rows(self) -> list[Row]:
        """All blocks as they are now, for `encode`; cheap, so that an engine's step waits for no encoding."""
        return [(key, block, block.copies) for key, block in self._blocks.items()]

    def _describe(self, key: Key, block: _Block | None, parent: Any, event: StoredEvent, number: int) -> _Block | None:
        """A block that was not known, or known by its hash only. None where there is no room for it."""
        size = event.block_size
        told = 0 < size * len(event.block_hashes) == len(event.token_ids) and len(self) < self.capacity
        if block is None:
            if not told and self._bare >= self.capacity:
                return None
            block = self._blocks[key] = _Block(None, None, None, None, {})
            self._bare += 1
        if told:
            block.parent, block.lora_name = parent, event.lora_name
            block.extra_keys = event.extra_keys[number] if event.extra_keys else None
            block.ids = array("I", event.token_ids[number * size : (number + 1) * size]).tobytes()
            self._bare -= 1
        return block


def encode(rows: Sequence[Row], *, seq: int, block_size: int, beyond: int = 0) -> bytes:
    """The snapshot as it is served (docs/explanation/directory.md), valid after the batch numbered `seq`.

    Parents come before their children. `missing` counts cached blocks that are not in it, with those `beyond` the
    record. Each row is encoded by itself, so that the thread that does it gives way to the engine's.
    """
    pack = msgspec.msgpack.Encoder().encode
    told = [msgspec.Raw(pack(row)) for row in _ordered(rows)]
    missing = beyond + sum(1 for _, block, _ in rows if block.ids is None)
    return pack({"v": 1, "seq": seq, "block_size": block_size, "blocks": told, "missing": missing})


def _ordered(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """[hash, parent, token ids, medium, group, adapter, extra keys, copies] of each block and medium."""
    known = {row[0]: row for row in rows if row[1].ids is not None}
    for key in list(known):
        for block_key, block, copies in _upwards(known, key):
            ids = array("I", block.ids or b"").tolist()
            for medium, count in copies.items():
                yield [
                    block_key[0], block.parent, ids, medium, block_key[1], block.lora_name, block.extra_keys, count
                ]  # fmt: skip


def _upwards(known: dict[Key, Row], key: Key) -> list[Row]:
    """The block and those above it that were not given yet, topmost first; takes them out of `known`."""
    chain: list[Row] = []
    while (row := known.pop(key, None)) is not None:
        chain.append(row)
        if row[1].parent is None:
            break
        key = (row[1].parent, key[1])
    return chain[::-1]


def _without(copies: dict[str | None, int], medium: str | None) -> dict[str | None, int]:
    """One copy in `medium` less."""
    left = dict(copies)
    left[medium] -= 1
    return left if left[medium] else {other: count for other, count in left.items() if other != medium}
