"""The agent of one engine: it publishes the engine's cache, load and state to the directory.

Each task survives the loss of the engine or of the directory:
- The event stream feeds the publisher, and the publisher feeds the directory's writer.
- The load watch reads the engine's metrics and derives the state.
- The warm-up runs once after each start of the engine, because a restarted engine has an empty cache.
The published state is the first that applies: draining, unhealthy, stalled, warming, ready.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from plumage.directory.client.tasks import end
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Load, State, engine_name
from plumage.errors import ConfigurationError
from plumage_engine.agent.config import AgentConfig
from plumage_engine.agent.directory.event_publisher import EventPublisher
from plumage_engine.agent.directory.memory_share import follow_share
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.directory.throttle import Throttle
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine.load import EngineLoad
from plumage_engine.agent.engine.stall_detection import RestartWatch, StallWatch
from plumage_engine.agent.engine_updates.batching_policy import BatchingPolicySender
from plumage_engine.agent.engine_updates.learned_tables import LearnedTablesSync
from plumage_engine.agent.engine_updates.promotion import PromotionSender
from plumage_engine.agent.events.stream import EventStream
from plumage_engine.agent.index import checkpoint
from plumage_engine.agent.index.block import last_chunk
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.agent.tokenizer import TokenText
from plumage_engine.agent.warmup import Hottest, Prefix, WarmupResult, find_peers, warm
from plumage_engine.configuration import read_secret

if TYPE_CHECKING:
    from plumage.incluster.callers import Callers

__all__ = ["Agent"]

log = logging.getLogger(__name__)

MISSES = 4  # failed checks in a row until the engine is unhealthy: two seconds at the default pace
CALM = 4  # factor on the check interval while the engine answers and is ready
CHECKPOINT = 60.0  # seconds; the engine's replay covers more than that
RANK = 5.0  # seconds between two rankings; the pool's hotness arrives as often
RANK_SHARE = 50  # smallest ratio of the interval between rankings to the time that one takes
QUIET = 0.5  # seconds without requests that end a drain; a router may have sent one just before it heard


class Agent:
    """Starts with `start`, ends with `close`; in between `stats`, `hottest` and `drain` may be asked."""

    def __init__(self, config: AgentConfig, text: TokenText, rng: random.Random | None = None) -> None:
        self.config = config
        self.token = read_secret(config.token_file)
        self.callers = _callers(config)
        self.figures_only = frozenset(config.figures_only)
        self.load = EngineLoad()
        self.warmup_result: WarmupResult | None = None
        self._rng = rng or random.Random()
        self._lossy = text.lossy
        self._engine = EngineClient(
            config.engine_url, read_secret(config.engine_token_file), read_secret(config.engine_api_key_file)
        )
        self.writer = DirectoryWriter(
            config.directory,
            pool=config.pool,
            replica=config.replica,
            engine=engine_name(config.model, text.rendering),
            heartbeat_seconds=config.heartbeat_seconds,
            capacity=config.max_chunks,
            rng=self._rng,
        )
        index = CacheIndex(config.model, text.table, config.max_blocks, LocalHotness(config.max_ids))
        self.publisher = EventPublisher(index, Throttle(config.publish_rate), self.writer)
        self.hotness = PoolHotness(config.directory, config.pool, index.heat, self._rng)
        self.tables = LearnedTablesSync(config.directory, config.pool, config.replica, self._engine)
        self.promote = PromotionSender(self._engine, self.hotness, index, rng=self._rng)
        path = config.feather_file
        self.feather = BatchingPolicySender(path, self._engine, rng=self._rng) if path is not None else None
        self.stream = EventStream(
            config.events_endpoint, config.replay_endpoint, self.publisher, self._engine.snapshot, config.events_topic
        )
        self._resume()
        self._stall = StallWatch(config.stalled_seconds)
        self._life = RestartWatch()
        self._cold = asyncio.Event()  # set when the engine has started and is not warmed yet
        self.answered = False
        self._misses = MISSES  # unhealthy until it answers
        self._trouble = "it was not asked yet"
        self._looked = 0.0  # when the last complete check began
        self._asking = asyncio.Lock()
        self._stalled = False
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    def start(self) -> None:
        self._spawn("directory", self.writer.run())
        self.hotness.start()
        self._spawn("tables", self.tables.run())
        self._spawn("promote", self.promote.run())
        self._spawn("events", self.stream.run())
        self._spawn("checkpoints", self._keep())
        self._spawn("load", self._watch())
        self._spawn("ranking", self._rank())
        self._spawn("warm-up", self._warm())
        if self.feather is not None:
            self._spawn("feather", self.feather.run())
        if self.config.share is not None:
            self._spawn("share", follow_share(self.config.share, self.writer))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"agent {name}"))

    async def wait(self) -> None:
        """Return when another agent of the same replica takes over. Raise the error of a task that fails."""
        pending = set(self._tasks)
        while not self.writer.superseded:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def close(self) -> None:
        """Stop, and delete the replica's entries, so that routers need not wait until the heartbeat expires."""
        await end(self._tasks)
        if (path := self._savable()) is not None:
            checkpoint.write(path, self.publisher.index.save(*self.stream.position))
        await self.hotness.close()
        await self.tables.close()
        await self.writer.close()
        await self._engine.close()

    # Checkpoints

    def _resume(self) -> None:
        """Restore the index from the last checkpoint. The event stream then verifies it by a replay."""
        path = self.config.state_file
        saved = checkpoint.read(path, self.config.model) if path is not None else None
        if saved is not None:
            self.publisher.index.restore(saved)
            self.stream.resume(saved.seq, saved.ts)

    def _savable(self) -> Path | None:
        """The path of the checkpoint; None until the index is complete."""
        return self.config.state_file if self.stream.synced.is_set() else None

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT)
            if (path := self._savable()) is not None:
                rows = self.publisher.index.save(*self.stream.position)
                await asyncio.to_thread(checkpoint.write, path, rows)  # half a million blocks take a second

    async def _rank(self) -> None:
        """While the directory has no room for all that is held, tell the writer what is hot: for 1/RANK_SHARE of the
        time at most, since a look at all that is held may take a second."""
        pause = RANK
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            if self.writer.full:
                await self.writer.rank(await self.hotness.chunk_uses(self.writer.count))
            pause = max(RANK, RANK_SHARE * (time.monotonic() - began))

    # State

    @property
    def state(self) -> State:
        if self._draining:
            return State.DRAINING
        if self._misses >= MISSES:
            return State.UNHEALTHY if self.answered else State.WARMING
        if self._stalled:
            return State.STALLED
        return State.READY if self.warmup_result is not None else State.WARMING

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def why(self) -> str | None:
        """Why it is not ready, for people; None when it is."""
        state = self.state
        if state is State.WARMING:
            return (
                "it is warmed from its peers" if self.answered else f"its engine does not answer yet: {self._trouble}"
            )
        reasons = {
            State.DRAINING: "it drains, for its pod ends",
            State.UNHEALTHY: f"its engine stopped answering: {self._trouble}",
            State.STALLED: f"its engine made no step for {self.config.stalled_seconds:g} s with requests running",
        }
        return reasons.get(state)

    async def engine_page(self) -> str:
        """The engine's /metrics; empty while it does not answer."""
        try:
            return await self._engine.page()
        except EngineDownError:
            return ""

    async def serves(self) -> bool:
        """Ready, asked of the engine now: what the last look saw may be a life that has ended since. Those who ask at
        once share a look: anybody may ask, and four that fail are an engine that is lost."""
        if self.ready:
            asked = time.monotonic()
            async with self._asking:
                if self._looked < asked:
                    await self._look()
        return self.ready and not self._misses and not self._life.doubtful

    async def _watch(self) -> None:
        while True:
            started = time.monotonic()
            await self._look()
            await asyncio.sleep(max(0.0, self._pace() - (time.monotonic() - started)))

    def _pace(self) -> float:
        """The load goes out with the heartbeat only; what is quick is to see a change of state through."""
        quick = self.config.load_seconds
        calm = self.state is State.READY and not self._misses and not self._life.doubtful
        return max(quick, min(CALM * quick, self.config.stalled_seconds / 4)) if calm else quick

    async def _look(self) -> None:
        began = time.monotonic()
        try:
            self.load = await self._engine.load()
        except EngineDownError as error:
            self._trouble = str(error)
            self._misses += 1
            if self._misses == MISSES and self.answered:
                log.warning("%s: %s", self.config.replica, error)
        else:
            first = not self.answered
            self._misses, self.answered = 0, True
            if self._life.look(self.load):
                self._begin_life(first=first)
        self._looked = began
        self._stalled = self._stall.look(self.load, self.stream.counters.batches, time.monotonic())
        self._report()

    def _begin_life(self, *, first: bool) -> None:
        """Cold, but for an engine that had served before this agent came: it lost its agent, not its cache."""
        if first and self.load.query_tokens:
            self.warmup_result = WarmupResult(reason="its engine has served before")
        else:
            self.warmup_result = None
            self._cold.set()

    def _report(self) -> None:
        load = Load(int(self.load.running), int(self.load.waiting), self.load.kv_usage)
        self.writer.report(state=self.state, load=load)

    # Warm-up

    async def _warm(self) -> None:
        while True:
            await self._cold.wait()
            self._cold.clear()
            warmth = await self._warmed()
            if not self._cold.is_set():  # else the engine has restarted meanwhile
                self.warmup_result = warmth
                log.info("%s warmed: %s", self.config.replica, warmth)
                self._report()

    async def _warmed(self) -> WarmupResult:
        config = self.config.warmup
        peers = await asyncio.to_thread(find_peers, config, self.config.replica) if config.enabled else []
        model = self.config.served_model or self.config.model
        return await warm(self._engine, model, peers, config, self._peer_token(), self._rng)

    def _peer_token(self) -> SecretStr | None:
        """What opens peers' routes: in a cluster this pod's own identity, which is renewed under us."""
        path = self.config.peer_token_file
        try:
            return self.token if path is None else read_secret(path)
        except ConfigurationError as error:
            log.warning("no peer will answer: %s", error)
            return None

    def hottest(self, tokens: int) -> Hottest:
        """What a new peer should compute, as far as `tokens` go."""
        heat, uses = self.publisher.index.heat, self.hotness.uses()
        found = heat.prefixes(sorted(uses, key=uses.__getitem__, reverse=True), tokens)
        return Hottest([Prefix(ids, block.origin.adapter, uses[block]) for block, ids in found])

    # Drain

    async def drain(self, seconds: float) -> dict[str, Any]:
        """Say Draining, then wait until nothing is in flight or the time is up. There is no way back: what drains is
        about to be deleted."""
        started = time.monotonic()
        self._draining = True
        self._report()
        quiet_since: float | None = None
        while (now := time.monotonic()) - started < seconds:
            await self._look()
            if self._in_flight():
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= QUIET:
                break
            await asyncio.sleep(min(0.1, self.config.load_seconds))
        left = self._in_flight()
        return {"drained": not left, "inFlight": left, "seconds": round(time.monotonic() - started, 3)}

    def _in_flight(self) -> int:
        """An engine that is gone has nothing in flight."""
        return 0 if self._misses >= MISSES else int(self.load.running + self.load.waiting)

    # Figures

    @property
    def directory_counts(self) -> dict[str, Counter[str]]:
        """What came of reading the directory, by part."""
        return {"hotness": self.hotness.counts, "tables": self.tables.counts}

    def stats(self) -> dict[str, Any]:
        index, counters = self.publisher.index, self.stream.counters
        warmth = self.warmup_result
        return {
            "replica": self.config.replica,
            "epoch": self.writer.epoch,
            "state": self.state.name.capitalize(),
            "directory": "degraded" if self.writer.degraded else "ok",
            "chunks": self.writer.count,
            "chunksLeftOut": self.writer.left_out,
            "blocks": len(index),
            "running": int(self.load.running),
            "waiting": int(self.load.waiting),
            "kvUsage": self.load.kv_usage,
            "hitTokens": int(self.load.hit_tokens),
            "queryTokens": int(self.load.query_tokens),
            "hottest": self._hottest_chunks(10),
            "eventCpuMicros": round(self.publisher.cpu_micros_per_block, 2),
            "synced": self.stream.synced.is_set(),
            "events": {name: getattr(counters, name) for name in counters.__slots__},
            "index": {name: getattr(index.counters, name) for name in index.counters.__slots__},
            "withheld": len(self.publisher.throttle),
            "promote": dict(self.promote.counts),
            "feather": self.feather and {**self.feather.counts, "error": self.feather.error},
            "lossy": list(self._lossy),
            "warmup": warmth and {"prefixes": warmth.prefixes, "tokens": warmth.tokens, "reason": warmth.reason},
        }

    def _hottest_chunks(self, most: int) -> list[dict[str, Any]]:
        """Prefixes by the hash of their last whole chunk: no text, no token id."""
        hottest = [(last_chunk(block), block.tokens, uses) for block, uses in self.publisher.index.heat.hottest(most)]
        return [
            {"chunk": f"{chunk:016x}", "tokens": tokens, "count": uses}
            for chunk, tokens, uses in hottest
            if chunk is not None
        ]


def _callers(config: AgentConfig) -> Callers | None:
    """Made only where somebody is named: the rest runs without the extra `kube`."""
    if not config.callers:
        return None
    from plumage.incluster.api import ApiServer
    from plumage.incluster.callers import Callers

    return Callers(ApiServer(config.api_server), config.callers)
