"""What an engine's cache holds, as byte chunks: block events in, chunk changes out. No clock, no I/O.

Contract: after any sequence of events, a chunk is held iff some chain of cached blocks from a prompt's start covers its
bytes, and its tier is the slowest medium on the best such chain. `changes()` gives what changed since it was last
asked, net, as the directory wants it: (chunk, tier or 0, tokens up to the chunk's end).

How: each block knows where the byte chain stands after it (`link`: hash and tail), so a child continues it with its own
tokens' bytes. `own` copies are counted by tier; `reach` is the slowest tier on the way from the root, GONE when
a block on the way is missing. A chunk counts the blocks that complete it, by their reach: sampled tokens rarely encode
back to themselves, so one chunk can be completed on several chains.

- vLLM publishes a block again when a second prefill computed it, and its removal once a copy: copies are counted.
- Groups other than full attention keep windows or states, not prefixes; they are not followed.
- A parent that was evicted before its children stays as a ghost: its return makes them reachable again, unannounced.
- A block whose parent is unknown (its event was lost) can't be placed: it is counted and dropped.
- The chain ends at the first image, audio or embedding: such blocks are placed, but complete no chunks.
- At `capacity` blocks new ones are dropped and counted; engines hold fewer unless events were lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from plumage.directory.schema import Change
from plumage.hashing.chunks import CHUNK, Link, chain, seed
from plumage.rendering.bytetable import ByteTable
from plumage_engine.agent.index.block import Block, Origin, adopt, children_of, disown
from plumage_engine.agent.index.checkpoint import VERSION, Checkpoint, block_of, row_of
from plumage_engine.agent.index.local_hotness import ID, LocalHotness
from plumage_engine.agent.index.tier_counts import BITS, GONE, best, count, minus, of_medium, plus
from plumage_engine.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, Row

__all__ = ["CacheIndex", "Counters"]

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a cached block stands for the whole prefix before it (vLLM's KVCacheSpecKind)."""

MOST_ORIGINS = 10_000
"""Origins kept for sharing; with more tenants the cache of them starts over."""


class Chunk:
    """A chunk that blocks complete. `blocks`: tally by their reach, GONE too; at 0 it can go. `told`: the tier that
    `changes` gave last, 0 for none."""

    __slots__ = ("blocks", "tokens", "told")

    def __init__(self, tokens: int) -> None:
        self.blocks = 0
        self.tokens = tokens
        self.told = 0


@dataclass(slots=True)
class Counters:
    """What an operator wants to know when predictions are off."""

    stored: int = 0
    removed: int = 0
    unknown_parents: int = 0
    over_capacity: int = 0
    stray_removals: int = 0
    unfollowed: int = 0


class CacheIndex:
    """See the module. `base_model` and `table` must be what the routers hash with, or nothing ever matches."""

    def __init__(
        self, base_model: str, table: ByteTable, capacity: int = 2_000_000, heat: LocalHotness | None = None
    ) -> None:
        self.capacity = capacity
        self.counters = Counters()
        self.heat = heat if heat is not None else LocalHotness()
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
        """All blocks known now, every one before its parent: a block comes after its parent and goes before it."""
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
        """Nothing is held any more. Chunks that were told stay until `changes` took them back."""
        self._blocks.clear()
        self._origins.clear()
        self.heat.clear()
        for chunk in self._chunks.values():
            chunk.blocks = 0
        self._touched.update(self._chunks)

    def changes(self) -> list[Change]:
        """What changed since the last call, net."""
        out: list[Change] = []
        for key, chunk in self._touched.items():
            tier = best(chunk.blocks) % GONE
            if tier != chunk.told:
                chunk.told = tier
                out.append(Change(key, tier, chunk.tokens))
            if not chunk.blocks:
                del self._chunks[key]
        self._touched.clear()
        return out

    # Checkpoints

    def save(self, seq: int, ts: float | None) -> Checkpoint:
        """The whole index, valid after batch `seq`. Parents come first: while they have children they are kept."""
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
        self._settle(block)

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
            self.heat.used(shared)

    def _one_by_one(
        self, event: BlockStored, above: Block | None, shared: Block | None, tier: int, plain: bool
    ) -> Block | None:
        """Blocks of which some are known, or more than text, or too many. The last one that was computed once more, or
        where the event branched off."""
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
        """The usual event, new blocks of text, at half the cost of `_grow` for each. False: it is another one, and
        nothing was done."""
        hashes, ids, size = event.block_hashes, event.token_ids, event.block_size
        new, link, table = set(hashes), above.link, self._table
        if link is None or table.prefix == "first" or not size or len(self._blocks) + len(new) > self.capacity:
            return False
        if not len(ids) == size * len(new) == size * len(hashes) or not self._blocks.keys().isdisjoint(new):
            return False
        pieces, packed = table.parts(ids, above.fresh), self.heat.pack(above.origin, ids, self._blocks.values())
        parent, origin, tokens = above if above.tokens else None, above.origin, above.tokens
        reach, copies, fresh = max(tier, above.reach), 1 << (tier - 1) * BITS, False
        for number, key in enumerate(hashes):
            start, end = number * size, (number + 1) * size
            link, chunks = self._advance(link, pieces[start:end], tokens, reach)
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
        """The start of a prompt: no block of the engine's, always reachable."""
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
            known = (Origin(adapter, salt), Link(seed(self._base_model, adapter, salt)))
            self._origins[adapter, salt] = known
        return known

    def _grow(self, above: Block, key: BlockHash, ids: Sequence[int], tier: int, text_alone: bool) -> Block:
        """A block that was not known, with its first copy: it continues its parent's chain. Nothing is below it yet, so
        its reach is known at once. A first block's keys were looked at in `_root`."""
        parent = above if above.tokens else None
        block = Block(key, parent, above.origin, None, above.tokens + len(ids))
        block.copies = 1 << (tier - 1) * BITS
        block.reach = tier if tier > above.reach else above.reach
        if above.link is not None and text_alone:
            parts = self._table.parts(ids, above.fresh)
            block.fresh = self._table.starts_fresh(ids[-1])
            block.link, block.chunks = self._advance(above.link, parts, above.tokens, block.reach)
        block.ids = self.heat.pack(block.origin, ids, self._blocks.values())
        self._blocks[key] = block
        if parent is not None:
            adopt(parent, block)
        self.counters.stored += 1
        return block

    def _advance(
        self, link: tuple[int, bytes], parts: Sequence[bytes], tokens: int, reach: int
    ) -> tuple[tuple[int, bytes], tuple[int, ...]]:
        """Continue the chain by a block's bytes, of which `parts` has each token's, after so many tokens: where it
        stands then, and the chunks that became whole."""
        seed, tail = link
        data = tail + b"".join(parts)
        if len(data) < CHUNK:
            return (seed, data), ()
        hashes = chain(data, seed)
        ends: Sequence[int] = ()
        for end, key in enumerate(hashes, start=1):
            chunk = self._chunks.get(key)
            if chunk is None:
                ends = ends or list(accumulate(map(len, parts)))
                inside = bisect_right(ends, end * CHUNK - len(tail))
                chunk = self._chunks[key] = Chunk(tokens + inside)
            chunk.blocks = plus(chunk.blocks, reach)
            self._touched[key] = chunk
        return (hashes[-1], data[len(hashes) * CHUNK :]), tuple(hashes)

    def _gain(self, block: Block, tier: int) -> None:
        before = best(block.copies)
        block.copies = plus(block.copies, tier)
        self.counters.stored += 1
        if tier < before:
            self._settle(block)

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
                self._settle(block)
            else:
                self._bury(block)

    def _settle(self, top: Block) -> None:
        """Bring the reach of a block, and of those below it, up to date."""
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

    def _bury(self, dead: Block) -> None:
        """Forget a block without copies or children, and the ghosts above it that have no other child."""
        block: Block | None = dead
        while block is not None and not block.copies and block.children is None:
            del self._blocks[block.key]
            self.heat.forget(block)
            for key in block.chunks:
                chunk = self._chunks[key]
                chunk.blocks = minus(chunk.blocks, block.reach)
                self._touched[key] = chunk
            if block.parent is not None:
                disown(block.parent, block)
            block = block.parent


def _foreign_keys(event: BlockStored, number: int) -> list[object]:
    """A block's extra keys without the LoRA's name. They carry no tags: on a prompt's first block a single string that
    is left is the salt; anything else says that the block is not text alone."""
    keys = event.extra_keys[number] if event.extra_keys and number < len(event.extra_keys) else None
    if not keys:
        return []
    rest = list(keys)
    if event.lora_name in rest:
        rest.remove(event.lora_name)
    return rest
