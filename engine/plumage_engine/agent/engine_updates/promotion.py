"""The pool's hotness, handed down to an engine whose host memory ranks by it (`POST /v1/plumage/promote`).

Contract: every `period` seconds the engine is told the hottest of the blocks that it holds, `MOST` at most, with the
pool's uses (0064) of each and of all that goes on from it, faded by age. An engine lets the word lapse after a minute,
so one whose directory is away gets nothing and ranks by what it saw itself. An engine without the route, or without
host memory that ranks by it (stock vLLM, the simulator), is asked again once a minute, by an empty word. Nothing waits
for any of this; what fails is counted and tried again. Hashes and numbers only: no token id, no text.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from heapq import nlargest

from plumage.directory.backoff import Backoff
from plumage.directory.tasks import forever
from plumage_engine.agent.directory.pool_hotness import HotnessLink
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.events.wire import BlockHash
from plumage_engine.agent.index.cache_index import CacheIndex

__all__ = ["MOST", "PromoteLink"]

PERIOD = 10.0  # seconds; the engine's copy of the word holds for sixty
REST = 60.0  # seconds until an engine that does not want it is asked again
SHARE = 50  # seconds from one word to the next ÷ what making it took, at least
MOST = 16_384
"""Blocks that one word names: the engine reads it between two steps, and this many take it 3 ms."""


class PromoteLink:
    """One agent's part. `counts`: told, blocks (named in all words), unwanted (answers of engines that do not rank by
    it), failures (words that did not arrive), held_back (times there was nothing to tell, or the directory was away).
    period, rest: seconds."""

    def __init__(
        self,
        engine: EngineClient,
        hotness: HotnessLink,
        index: CacheIndex,
        period: float = PERIOD,
        rest: float = REST,
        rng: random.Random | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter(told=0, blocks=0, unwanted=0, failures=0, held_back=0)
        self._engine = engine
        self._hotness = hotness
        self._index = index
        self._period = period
        self._rest = rest
        self._rng = rng or random.Random()
        self._wanted = False

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._rng, longest=self._period)
        await forever(self._turn, "hotness for the engine", backoff=backoff, failed=self._failed)

    async def _turn(self) -> None:
        began = time.monotonic()
        try:
            await self.tell()
        except EngineDownError:  # the load watch tells of it
            self.counts["failures"] += 1
            refused = False
        else:
            refused = not self._wanted
        took = time.monotonic() - began
        await asyncio.sleep(self._rest if refused else max(self._period, SHARE * took))

    def _failed(self, error: Exception) -> None:
        self.counts["failures"] += 1

    async def tell(self) -> None:
        """One word, where the engine wants it. EngineDownError when it can't be reached."""
        if not self._wanted and not await self._offer({}):
            return
        heats = {} if self._hotness.away else await self._hotness.block_heats(self._index)
        if not heats:
            self.counts["held_back"] += 1
        elif await self._offer(heats):
            self.counts["told"] += 1
            self.counts["blocks"] += min(MOST, len(heats))

    async def _offer(self, heats: Mapping[BlockHash, int]) -> bool:
        hottest = nlargest(MOST, heats.items(), key=lambda entry: entry[1])
        self._wanted = await self._engine.promote({_short(key): heat for key, heat in hottest})
        self.counts["unwanted"] += not self._wanted
        return self._wanted


def _short(key: BlockHash) -> int:
    """The low 64 bits, which name a block in host memory; most engines' events tell those alone."""
    return key if isinstance(key, int) else int.from_bytes(key[-8:], "big")
