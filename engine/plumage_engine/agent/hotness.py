"""Hotness both ways: what was used here goes to the pool once a second, the pool's view comes back.

Contract: prefixes are named by their last whole chunk, never by text. Uses are those that `Heat` sees in the events,
requests those that the engine finished. `uses` ranks the prefixes of this engine by the whole pool's counts, and by its
own where the directory is away or knows nothing of them.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from plumage.directory.hotness import HotnessShare
from plumage_engine.agent.block import Block, last_chunk
from plumage_engine.agent.heat import Heat

__all__ = ["HotnessLink"]

PERIOD = 1.0
CLOSING = 2.0
RANKED = 1000  # prefixes that are looked up in the pool's view at a time


class HotnessLink:
    """One agent's part in the pool-wide hotness."""

    def __init__(self, url: str, pool: str, heat: Heat, rng: random.Random) -> None:
        self._share = HotnessShare(url, pool=pool, rng=rng)
        self._heat = heat
        self._finished: float | None = None

    def start(self) -> None:
        self._share.start()

    async def close(self) -> None:
        """Bounded: nobody waits for counts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._share.close()

    async def run(self) -> None:
        """Hand over what is new, until cancelled."""
        while True:
            self._hand_over()
            await asyncio.sleep(PERIOD)

    def finished(self, total: float) -> None:
        """The engine's count of ended requests, as often as it is read; a smaller one is a restarted engine's."""
        last, self._finished = self._finished, total
        if last is not None:
            for _ in range(int(min(max(0.0, total - last), 10_000))):
                self._share.request()

    def uses(self) -> dict[Block, int]:
        """This engine's hottest prefixes with the pool's uses of them."""
        return {block: max(own, self._pool_wide(block)) for block, own in self._heat.hottest(RANKED)}

    def _pool_wide(self, block: Block) -> int:
        chunk = last_chunk(block)
        known = self._share.view.get(chunk) if chunk is not None else None
        return known.frequency if known is not None else 0

    def _hand_over(self) -> None:
        for block, uses in self._heat.news():
            chunk = last_chunk(block)
            if chunk is not None:
                self._share.use(chunk, block.tokens, uses)
