"""The agent of one engine: it publishes the engine's cache, load and state to the directory.

`Agent` builds the parts, connects them and runs their tasks. Each task survives the loss of the engine or of the
directory:
- The event stream feeds the publisher, and the publisher feeds the directory's writer.
- The state watch reads the engine's metrics and derives the state.
- The warm-up runs once after each start of the engine, because a restarted engine has an empty cache.
- An engine with TLS may want a certificate, which is read again when its file changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plumage.directory.client.tasks import end
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import engine_name
from plumage.settings.agent_config import AgentConfig
from plumage_engine.agent.directory.event_publisher import EventPublisher
from plumage_engine.agent.directory.memory_share import follow_share, rank_chunks
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.directory.throttle import Throttle
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.engine_updates.adapters import AdapterSync
from plumage_engine.agent.engine_updates.batching_policy import BatchingPolicySender
from plumage_engine.agent.engine_updates.learned_tables import LearnedTablesSync
from plumage_engine.agent.engine_updates.promotion import PromotionSender
from plumage_engine.agent.events.stream import EventStream
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.agent.lifecycle.checkpoints import Checkpoints
from plumage_engine.agent.lifecycle.state_watch import StateWatch
from plumage_engine.agent.lifecycle.warmup import Hottest, WarmupTask, hottest_prefixes
from plumage_engine.agent.tokenizer import TokenText
from plumage_engine.certificates import ReloadedContext, client_context
from plumage_engine.configuration import read_secret

__all__ = ["Agent"]


class Agent:
    """One agent. `start` starts its tasks, `close` ends them. file: of its settings, read again for changed adapters.

    ConfigurationError for a secret that can't be read.
    """

    def __init__(
        self, config: AgentConfig, text: TokenText, rng: random.Random | None = None, file: Path | None = None
    ) -> None:
        rng = rng or random.Random()
        self.config = config
        self.lossy = text.lossy
        self._engine_tls = _engine_tls(config)
        self.engine = EngineClient(
            config.engine_url,
            read_secret(config.engine_token_file),
            read_secret(config.engine_api_key_file),
            None if self._engine_tls is None else self._engine_tls.context,
        )
        self.writer = DirectoryWriter(
            config.directory,
            pool=config.pool,
            replica=config.replica,
            engine=engine_name(config.model, text.rendering),
            heartbeat_seconds=config.heartbeat_seconds,
            capacity=config.max_chunks,
            rng=rng,
        )
        index = CacheIndex(config.model, text.table, config.max_blocks, LocalHotness(config.max_ids))
        self.publisher = EventPublisher(index, Throttle(config.publish_rate), self.writer)
        self.hotness = PoolHotness(config.directory, config.pool, index.hotness, rng)
        self.tables = LearnedTablesSync(config.directory, config.pool, config.replica, self.engine)
        self.promotion = PromotionSender(self.engine, self.hotness, index, rng=rng)
        path = config.feather_file
        self.batching_policy = BatchingPolicySender(path, self.engine, rng=rng) if path is not None else None
        wanted = {adapter.name: adapter.path for adapter in config.adapters}
        self.adapters = AdapterSync(wanted, self.engine, file, rng=rng)
        self.stream = EventStream(
            config.events_endpoint, config.replay_endpoint, self.publisher, self.engine.snapshot, config.events_topic
        )
        self.watch = StateWatch(config, self.engine, self.writer, lambda: self.stream.counters.batches, self.adapters)
        self.adapters.changed = self.watch.report
        self._warmup = WarmupTask(config, self.engine, self.watch, read_secret(config.token_file), rng)
        self._checkpoints = Checkpoints(config.state_file, config.model, index, self.stream)
        self._checkpoints.restore()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._spawn("directory", self.writer.run())
        self.hotness.start()
        self._spawn("tables", self.tables.run())
        self._spawn("promote", self.promotion.run())
        self._spawn("events", self.stream.run())
        self._spawn("checkpoints", self._checkpoints.run())
        self._spawn("state", self.watch.run())
        self._spawn("ranking", rank_chunks(self.writer, self.hotness))
        self._spawn("warm-up", self._warmup.run())
        if self.batching_policy is not None:
            self._spawn("feather", self.batching_policy.run())
        self._spawn("adapters", self.adapters.run())
        if self.config.share is not None:
            self._spawn("share", follow_share(self.config.share, self.writer))
        if self._engine_tls is not None:
            self._spawn("certificate", self._engine_tls.run())

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
        self._checkpoints.save()
        await self.hotness.close()
        await self.tables.close()
        await self.writer.close()
        await self.engine.close()

    def hottest(self, tokens: int) -> Hottest:
        """Prefixes that a new peer should compute, of `tokens` token ids at most in all."""
        return hottest_prefixes(self.publisher.index.hotness, self.hotness.uses(), tokens)


def _engine_tls(config: AgentConfig) -> ReloadedContext | None:
    url = urlsplit(config.engine_url)
    if url.scheme != "https":
        return None
    return client_context(url.hostname or "", config.engine_certificate_file, config.engine_certificate_key_file)
