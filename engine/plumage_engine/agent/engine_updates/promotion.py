"""Sends the pool's hotness to an engine whose host tier ranks by it (`POST /v1/plumage/promote`).

Every `period` seconds the engine gets the hottest of the blocks that it holds, `MOST` at most. Each has the pool's uses
(0064) of the block and of all blocks after it, reduced by age. An engine drops a report after a minute. While the
directory is away it gets none and ranks by its own counts. An engine without the route, or without such a host tier
(stock vLLM, the simulator), gets an empty report once a minute. No request waits for this. Failures are counted and
retried. Reports hold hashes and numbers only: no token id, no text.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from heapq import nlargest

from plumage.backoff import Backoff
from plumage.directory.client.tasks import run_forever
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.kv_events import BlockHash

__all__ = ["MOST", "PromotionSender"]

PERIOD = 10.0  # seconds; the engine keeps a report for sixty
REST = 60.0  # seconds until an engine that does not want it is asked again
SHARE = 50  # smallest ratio of the interval between reports to the time that one takes
MOST = 16_384
"""Blocks in one report. The engine reads it between two steps; so many take 3 ms."""


class PromotionSender:
    """Sends the pool's hotness to the engine. period, rest: seconds.

    `counts` has these:

    sent: reports. blocks: in all reports.
    unwanted: the engine does not rank by it. failures: it did not answer.
    held_back: nothing to report, or the directory was away.
    """

    def __init__(
        self,
        engine: EngineClient,
        hotness: PoolHotness,
        index: CacheIndex,
        period: float = PERIOD,
        rest: float = REST,
        rng: random.Random | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter(sent=0, blocks=0, unwanted=0, failures=0, held_back=0)
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
        await run_forever(self._turn, "hotness for the engine", backoff=backoff, failed=self._failed)

    async def _turn(self) -> None:
        began = time.monotonic()
        try:
            await self.send()
        except EngineDownError:  # the load watch reports it
            self.counts["failures"] += 1
            refused = False
        else:
            refused = not self._wanted
        took = time.monotonic() - began
        await asyncio.sleep(self._rest if refused else max(self._period, SHARE * took))

    def _failed(self, error: Exception) -> None:
        self.counts["failures"] += 1

    async def send(self) -> None:
        """Send one report if the engine wants it. EngineDownError when the engine can't be reached."""
        if not self._wanted and not await self._offer({}):
            return
        uses = {} if self._hotness.away else await self._hotness.block_uses(self._index)
        if not uses:
            self.counts["held_back"] += 1
        elif await self._offer(uses):
            self.counts["sent"] += 1
            self.counts["blocks"] += min(MOST, len(uses))

    async def _offer(self, uses: Mapping[BlockHash, int]) -> bool:
        hottest = nlargest(MOST, uses.items(), key=lambda entry: entry[1])
        self._wanted = await self._engine.promote({_short(key): count for key, count in hottest})
        self.counts["unwanted"] += not self._wanted
        return self._wanted


def _short(key: BlockHash) -> int:
    """The low 64 bits, which name a block in host memory; most engines' events have only those."""
    return key if isinstance(key, int) else int.from_bytes(key[-8:], "big")
