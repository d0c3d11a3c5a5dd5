"""Converts an engine's block events to changes of the byte chunks that it caches. No clock, no I/O.

Contract: a chunk is cached iff some chain of cached blocks from a prompt's start covers its bytes. Its tier is the
slowest medium on the best such chain. `changes()` gives the net changes since its last call, in the directory's form:
(chunk, tier or 0, tokens up to the chunk's end).

Method: each block stores the state of the byte chain after it (`link`), so a child continues it with the bytes of its
own tokens. `copies` are counted by tier. `reach` is the slowest tier on the way from the root, or GONE when a block on
the way is missing. A chunk counts the blocks that complete it, by their reach. Sampled tokens rarely encode back to
themselves, so one chunk can be completed on several chains.

- vLLM publishes a block again when a second prefill computed it, and its removal once a copy: copies are counted.
- Groups other than full attention keep windows or states, not prefixes; they are ignored.
- A parent that was evicted before its children stays as a ghost. When it is stored again its children are reachable
  again, without an event of their own.
- A block whose parent is unknown (its event was lost) is counted and dropped.
- The chain ends at the first image, audio or embedding: such blocks are indexed, but complete no chunks.
- At `capacity` blocks new ones are dropped and counted; engines cache fewer unless events were lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from plumage.directory.schema import Change
from plumage.hashing.chunks import PIECE, ends_chunk, pieces, seed
from plumage.rendering.bytetable import ByteTable
from plumage_engine.agent.index.block import (
    VERSION,
    Block,
    Checkpoint,
    Link,
    Origin,
    adopt,
    block_of,
    children_of,
    disown,
    row_of,
)
from plumage_engine.agent.index.local_hotness import ID, LocalHotness
from plumage_engine.agent.index.tier_counts import BITS, GONE, best, count, minus, of_medium, plus
from plumage_engine.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, Row

__all__ = ["CacheIndex", "Counters"]

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a cached block stands for the whole prefix before it (vLLM's KVCacheSpecKind)."""

MOST_ORIGINS = 10_000
"""Origins kept for sharing; with more tenants the cache of them starts over."""


class Chunk:
    """A chunk that blocks complete. blocks: their counts by reach, GONE included; at 0 the chunk is deleted.
    reported: the tier that `changes` gave last, 0 for none."""

    __slots__ = ("blocks", "reported", "tokens")

    def __init__(self, tokens: int) -> None:
        self.blocks = 0
        self.tokens = tokens
        self.reported = 0


@dataclass(slots=True)
class Counters:
    """Block events by what the index did with them; they explain wrong predictions of hits."""

    stored: int = 0
    removed: int = 0
    unknown_parents: int = 0
    over_capacity: int = 0
    stray_removals: int = 0
    unfollowed: int = 0


class CacheIndex:
    """See the module. base_model and table must be those of the routers' hashes, or no prefix ever matches."""

    def __init__(
        self, base_model: str, table: ByteTable, capacity: int = 2_000_000, hotness: LocalHotness | None = None
    ) -> None:
        self.capacity = capacity
        self.counters = Counters()
        self.hotness = hotness if hotness is not None else LocalHotness()
        self._base_model = base_model
        self._table = table
        self._blocks: dict[BlockHash, Block] = {}
        self._chunks: dict[int, Chunk] = {}
        self._touched: dict[int, Chunk] = {}
        self._followed: set[int | None] = set()
        self._origins: dict[tuple[str, str], tuple[Origin, Link]] = {}

    def __len__(self) -> int:
        """Blocks known, ghosts included."""
        return len(self._blocks)

    @property
    def chunks(self) -> int:
        return len(self._chunks)

    def block(self, key: BlockHash) -> Block | None:
        return self._blocks.get(key)

    def leaves_first(self) -> list[Block]:
        """All known blocks, each one before its parent. A block is stored after its parent and deleted before it."""
        return list(reversed(self._blocks.values()))

    # Events

    def apply(self, event: Event) -> None:
        if isinstance(event, BlockStored):
            self._stored(event)
        elif isinstance(event, BlockRemoved):
            self._removed(event)
        elif isinstance(event, AllBlocksCleared):
            self.clear()

    def load(self, rows: Iterable[Row], block_size: int) -> None:
        """Start over from an engine's snapshot."""
        self.clear()
        for row in rows:
            stored = BlockStored(
                [row.block_hash], row.parent, row.token_ids, block_size, None, row.medium, row.lora_name
            )
            stored.extra_keys, stored.group_idx = [row.extra_keys], row.group_idx
            for _ in range(row.copies):
                self._stored(stored)

    def clear(self) -> None:
        """Delete all blocks. Reported chunks stay until `changes` has reported their removal."""
        self._blocks.clear()
        self._origins.clear()
        self.hotness.clear()
        for chunk in self._chunks.values():
            chunk.blocks = 0
        self._touched.update(self._chunks)

    def changes(self) -> list[Change]:
        """What changed since the last call, net."""
        out: list[Change] = []
        for key, chunk in self._touched.items():
            tier = best(chunk.blocks) % GONE
            if tier != chunk.reported:
                chunk.reported = tier
                out.append(Change(key, tier, chunk.tokens))
            if not chunk.blocks:
                del self._chunks[key]
        self._touched.clear()
        return out

    # Checkpoints

    def save(self, seq: int, ts: float | None) -> Checkpoint:
        """The whole index, valid after batch `seq`, parents first."""
        rows = [row_of(block, self._with_tokens(block.chunks)) for block in self._blocks.values()]
        return Checkpoint(VERSION, self._base_model, seq, ts, list(self._followed), rows)

    def restore(self, saved: Checkpoint) -> None:
        """Start over from a checkpoint; a row without its parent, or past the capacity, is left out."""
        self.clear()
        self._followed.update(saved.groups)
        for row in saved.blocks:
            parent = self._blocks.get(row.parent) if row.parent is not None else None
            if len(self._blocks) < self.capacity and (parent is not None or row.parent is None):
                self._take(block_of(row, parent, self._origin(row.adapter, row.salt)[0]), row.chunks)

    def _take(self, block: Block, chunks: Iterable[tuple[int, int]]) -> None:
        self._blocks[block.key] = block
        if block.parent is not None:
            adopt(block.parent, block)
        for key, tokens in chunks:
            chunk = self._chunks.setdefault(key, Chunk(tokens))
            chunk.blocks = plus(chunk.blocks, GONE)
        self._update_reach(block)

    def _with_tokens(self, keys: Iterable[int]) -> Iterable[tuple[int, int]]:
        return ((key, self._chunks[key].tokens) for key in keys)

    # Storing

    def _stored(self, event: BlockStored) -> None:
        if event.kv_cache_spec_kind is not None and event.kv_cache_spec_kind not in FULL_ATTENTION:
            self.counters.unfollowed += 1
            return
        self._followed.add(event.group_idx)
        tier, plain = of_medium(event.medium), not any(event.extra_keys or ())
        above = self._root(event) if event.parent_block_hash is None else self._blocks.get(event.parent_block_hash)
        shared = above if above is not None and above.children is not None else None  # it branches here
        if above is None or not (plain and self._grow_all(event, above, tier)):
            shared = self._one_by_one(event, above, shared, tier, plain)
        if shared is not None:
            self.hotness.used(shared)

    def _one_by_one(
        self, event: BlockStored, above: Block | None, shared: Block | None, tier: int, plain: bool
    ) -> Block | None:
        """Index an event whose blocks are partly known, more than text, or too many. Returns the last block that was
        computed once more, or the one after which the event branched off."""
        size, hashes = event.block_size, event.block_hashes
        for number, key in enumerate(hashes):
            block = self._blocks.get(key)
            if block is not None:
                shared = block if count(block.copies, tier) else None  # computed once more
            else:
                ids = event.token_ids[number * size : (number + 1) * size]
                if above is None or not ids or len(self._blocks) >= self.capacity:
                    self._drop(above, ids, len(hashes) - number)
                    return None
                text_alone = plain or not above.tokens or not _foreign_keys(event, number)
                above = self._grow(above, key, ids, tier, text_alone)
                continue
            self._gain(block, tier)
            above = block
        return shared

    def _grow_all(self, event: BlockStored, above: Block, tier: int) -> bool:
        """Index the usual event, new blocks of text, at half the cost of `_grow` for each. False for any other event,
        which it leaves alone."""
        hashes, ids, size = event.block_hashes, event.token_ids, event.block_size
        new, link, table = set(hashes), above.link, self._table
        if link is None or table.prefix == "first" or not size or len(self._blocks) + len(new) > self.capacity:
            return False
        if not len(ids) == size * len(new) == size * len(hashes) or not self._blocks.keys().isdisjoint(new):
            return False
        texts, packed = table.parts(ids, above.fresh), self.hotness.pack(above.origin, ids, self._blocks.values())
        parent, origin, tokens = above if above.tokens else None, above.origin, above.tokens
        reach, copies, fresh = max(tier, above.reach), 1 << (tier - 1) * BITS, False
        for number, key in enumerate(hashes):
            start, end = number * size, (number + 1) * size
            link, chunks = self._advance(link, texts[start:end], tokens, reach)
            tokens += size
            if table.prefix == "each":
                fresh = table.starts_fresh(ids[end - 1])
            own_ids = packed[start * ID : end * ID] if packed is not None else None
            block = Block(key, parent, origin, link, tokens, fresh, reach, copies, chunks, own_ids)
            self._blocks[key] = block
            if parent is not None:
                adopt(parent, block)
            parent = block
        self.counters.stored += len(hashes)
        return True

    def _drop(self, above: Block | None, ids: Sequence[int], blocks: int) -> None:
        if above is None or not ids:
            self.counters.unknown_parents += blocks
        else:
            self.counters.over_capacity += blocks

    def _root(self, event: BlockStored) -> Block:
        """The start of a prompt. It is no block of the engine, and always reachable."""
        adapter = event.lora_name or ""
        keys = _foreign_keys(event, 0)
        salt = keys[0] if len(keys) == 1 and isinstance(keys[0], str) else ""
        origin, link = self._origin(adapter, salt)
        root = Block(0, None, origin, link if salt or not keys else None, 0)
        root.reach, root.fresh = 0, True
        return root

    def _origin(self, adapter: str, salt: str) -> tuple[Origin, Link]:
        known = self._origins.get((adapter, salt))
        if known is None:
            if len(self._origins) >= MOST_ORIGINS:
                self._origins.clear()
            known = Origin(adapter, salt), (seed(self._base_model, adapter, salt), b"", 0)
            self._origins[adapter, salt] = known
        return known

    def _grow(self, above: Block, key: BlockHash, ids: Sequence[int], tier: int, text_alone: bool) -> Block:
        """Add an unknown block with its first copy; it continues its parent's chain. It has no children yet, so no
        other reach changes. `_root` has checked the keys of a prompt's first block."""
        parent = above if above.tokens else None
        block = Block(key, parent, above.origin, None, above.tokens + len(ids))
        block.copies = 1 << (tier - 1) * BITS
        block.reach = tier if tier > above.reach else above.reach
        if above.link is not None and text_alone:
            parts = self._table.parts(ids, above.fresh)
            block.fresh = self._table.starts_fresh(ids[-1])
            block.link, block.chunks = self._advance(above.link, parts, above.tokens, block.reach)
        block.ids = self.hotness.pack(block.origin, ids, self._blocks.values())
        self._blocks[key] = block
        if parent is not None:
            adopt(parent, block)
        self.counters.stored += 1
        return block

    def _advance(self, link: Link, parts: Sequence[bytes], tokens: int, reach: int) -> tuple[Link, tuple[int, ...]]:
        """Continue the chain by one block. parts: the bytes of each token. tokens: of the prompt before the block.
        Returns the new state of the chain, and the chunks that the block completes."""
        previous, tail, number = link
        data = tail + b"".join(parts)
        if len(data) < PIECE:
            return (previous, data, number), ()
        hashes = pieces(data, previous)
        keys: list[int] = []
        ends: Sequence[int] = ()
        for end, key in enumerate(hashes, start=1):
            if not ends_chunk(number + end):
                continue
            keys.append(key)
            chunk = self._chunks.get(key)
            if chunk is None:
                ends = ends or list(accumulate(map(len, parts)))
                inside = bisect_right(ends, end * PIECE - len(tail))
                chunk = self._chunks[key] = Chunk(tokens + inside)
            chunk.blocks = plus(chunk.blocks, reach)
            self._touched[key] = chunk
        return (hashes[-1], data[len(hashes) * PIECE :], number + len(hashes)), tuple(keys)

    def _gain(self, block: Block, tier: int) -> None:
        before = best(block.copies)
        block.copies = plus(block.copies, tier)
        self.counters.stored += 1
        if tier < before:
            self._update_reach(block)

    # Removing

    def _removed(self, event: BlockRemoved) -> None:
        if event.group_idx not in self._followed:
            self.counters.unfollowed += 1
            return
        tier = of_medium(event.medium)
        for key in event.block_hashes:
            block = self._blocks.get(key)
            if block is None or not count(block.copies, tier):
                self.counters.stray_removals += 1
                continue
            self.counters.removed += 1
            block.copies = minus(block.copies, tier)
            if block.children is not None or block.copies:
                self._update_reach(block)
            else:
                self._delete(block)

    def _update_reach(self, top: Block) -> None:
        """Update the reach of a block and of its descendants."""
        pending = [top]
        while pending:
            block = pending.pop()
            reach = best(block.copies)
            if block.parent is not None and block.parent.reach > reach:
                reach = block.parent.reach
            if reach == block.reach:
                continue
            for key in block.chunks:
                chunk = self._chunks[key]
                chunk.blocks = plus(minus(chunk.blocks, block.reach), reach)
                self._touched[key] = chunk
            block.reach = reach
            pending += children_of(block)

    def _delete(self, dead: Block) -> None:
        """Delete a block without copies or children, and its ghost ancestors that have no other child."""
        block: Block | None = dead
        while block is not None and not block.copies and block.children is None:
            del self._blocks[block.key]
            self.hotness.forget(block)
            for key in block.chunks:
                chunk = self._chunks[key]
                chunk.blocks = minus(chunk.blocks, block.reach)
                self._touched[key] = chunk
            if block.parent is not None:
                disown(block.parent, block)
            block = block.parent


def _foreign_keys(event: BlockStored, number: int) -> list[object]:
    """A block's extra keys without the LoRA's name. vLLM does not tag them: a single string that is left on a prompt's
    first block is the salt. Anything else means that the block is not text alone."""
    keys = event.extra_keys[number] if event.extra_keys and number < len(event.extra_keys) else None
    if not keys:
        return []
    rest = list(keys)
    if event.lora_name in rest:
        rest.remove(event.lora_name)
    return rest
