"""Reads the pool's hotness from the directory and ranks this engine's prefixes by it.

Routers count the uses of each prefix (0064). A prefix is named by its last whole chunk, never by text. `uses` ranks by
the pool's counts. It falls back to `LocalHotness` where the directory is away or does not know the prefix.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

from plumage.directory.sharing.hotness_share import HotnessShare
from plumage_engine.agent.index.block import Block, children_of, last_chunk
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.kv_events import BlockHash

__all__ = ["PoolHotness"]

CLOSING = 2.0
RANKED = 1000  # prefixes that are looked up in the pool's view at a time
WALKED = 4096  # blocks on their way that are counted at a time: some five milliseconds


class PoolHotness:
    """The pool's hotness, as one agent reads it."""

    def __init__(self, url: str, pool: str, local: LocalHotness, rng: random.Random) -> None:
        self._share = HotnessShare(url, pool=pool, send=False, rng=rng)
        self._local = local

    @property
    def counts(self) -> Counter[str]:
        """Outcomes of reading (`HotnessShare`)."""
        return self._share.stream.counts

    @property
    def away(self) -> bool:
        """Whether the directory does not answer; then the hotness here is stale."""
        return self._share.stream.degraded

    def start(self) -> None:
        self._share.start()

    async def close(self) -> None:
        """Within CLOSING seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._share.close()

    def uses(self) -> dict[Block, int]:
        """This engine's hottest prefixes with the pool's uses of them."""
        return {block: max(own, self._pool_wide(block)) for block, own in self._local.hottest(RANKED)}

    async def chunk_uses(self, most: int) -> dict[int, int]:
        """Uses of the hottest prefixes' chunks, hottest first, until there are `most`. A use of a prefix uses all its
        chunks, so uses never rise along a chain. It yields to the event loop every `WALKED` blocks."""
        found: dict[int, int] = {}
        seen: set[Block] = set()
        for block, uses in sorted(self.uses().items(), key=lambda entry: entry[1], reverse=True):
            at: Block | None = block
            while at is not None and at not in seen:
                seen.add(at)
                for chunk in at.chunks:
                    found.setdefault(chunk, uses)
                if len(seen) % WALKED == 0:
                    await asyncio.sleep(0)
                at = at.parent
            if len(found) >= most:
                break
        return found

    async def block_uses(self, index: CacheIndex) -> dict[BlockHash, int]:
        """The pool's uses of each cached block, reduced by age, where there are any. A use of a prefix uses all its
        blocks, so uses never rise along a chain. It yields to the event loop every `WALKED` blocks."""
        found: dict[BlockHash, int] = {}
        below: dict[Block, int] = {}
        aged = self._share.view.aged
        for number, block in enumerate(index.leaves_first()):
            uses = below.pop(block, 0) + sum(map(aged, block.chunks))
            if uses and block.copies:
                found[block.key] = uses
            if uses and block.parent is not None:
                below[block.parent] = below.get(block.parent, 0) + uses
            if number % WALKED == 0:
                await asyncio.sleep(0)
        return found

    def _pool_wide(self, block: Block) -> int:
        """Uses that ended with this prefix. A router compares bytes, so its match may end one chunk later, with a chunk
        that a child block completes."""
        ends = {last_chunk(block), *(child.chunks[0] for child in children_of(block) if child.chunks)}
        known = (self._share.view.get(chunk) for chunk in ends if chunk is not None)
        return sum(uses.frequency for uses in known if uses is not None)
