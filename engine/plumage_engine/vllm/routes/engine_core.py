"""The engine core's half of the routes: it answers the API server and keeps the record of cached blocks.

A question arrives as vLLM's utility call `plumage(name, body)`. It is answered between two steps, on the only thread
that changes the scheduler. So a snapshot under load is as consistent as one of an idle engine. An answer is [HTTP
status, body]; a separate thread encodes snapshots, one at a time.
"""

from __future__ import annotations

import logging
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import isfinite
from typing import Any

import msgspec

from plumage.batching.stop import Predictive
from plumage.batching.stop.shared import LearnedTable, SharesTable, checked
from plumage.errors import ConfigurationError
from plumage_engine.vllm.compat import events
from plumage_engine.vllm.features import Features
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.pool_hotness import MAX_CHUNKS, HotnessReport, PoolHotness
from plumage_engine.vllm.routes.block_record import BlockRecord, encode
from plumage_engine.vllm.routes.fingerprint import fingerprint
from plumage_engine.vllm.routes.refusal import RefusedError
from plumage_engine.vllm.settings import read_feather

__all__ = ["EngineRoutes"]

_log = logging.getLogger("vllm.plumage")
_LONGEST_MESSAGE = 2_000  # characters

Answer = tuple[int, bytes]

_FIGURES: Mapping[str, Callable[[Any], float]] = {
    "running": lambda scheduler: len(scheduler.running),
    "waiting": lambda scheduler: scheduler.get_num_unfinished_requests() - len(scheduler.running),
    "batchLimit": lambda scheduler: scheduler.max_num_active_reqs,
    "kvUsage": lambda scheduler: scheduler.kv_cache_manager.usage,
    "cachedBlocks": lambda scheduler: len(scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block),
    "cacheBlocks": lambda scheduler: scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
    "blockSize": lambda scheduler: scheduler.block_size,
    "maxModelLen": lambda scheduler: scheduler.max_model_len,
}


class EngineRoutes:
    """Answers for one scheduler that was just made.

    record: None where no events are published.
    hotness: what the pool reported.
    """

    def __init__(self, scheduler: Any, features: Features, clock: Callable[[], float] = time.monotonic) -> None:
        self.hotness = PoolHotness(clock)
        self.record: BlockRecord | None = None
        self.next_sequence = 0
        self._scheduler = scheduler
        self._features = features
        self._clock = clock
        self._last_step = clock()
        self._life = secrets.token_hex(8)
        self._fingerprint: str | None = None
        self._repeats: set[int] = set()
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="plumage-snapshot")
        self._snapshot: Callable[[], Future[Answer] | None] = lambda: None
        """The snapshot that is being encoded. Its requester holds it, so it is freed once it is sent."""
        self._answers: Mapping[str, Callable[[bytes], Answer | Future[Answer]]] = {
            "snapshot": self._take_snapshot,
            "stats": self._stats,
            "tables": self._tables,
            "learn": self._learn,
            "promote": self._update_hotness,
            "feather": self._change_feather,
        }
        if events.publishes(scheduler):
            self._follow_events(Guard("record", features.counters, self._forget))
        self._figures()
        if getattr(events.EngineCore, "plumage", None) is None:
            events.EngineCore.plumage = _answer_utility_call

    # -- the record ----------------------------------------------------------------------------------------------------

    def _follow_events(self, guard: Guard) -> None:
        self._features.guards["record"] = guard
        if reasons := events.problems(self._scheduler):
            guard.refuse(reasons)
            return
        self.record = BlockRecord(self._features.settings.routes.record_blocks)
        self._watch_repeated_events(self._scheduler.kv_cache_manager.block_pool, guard)
        publisher = self._scheduler.kv_event_publisher
        own = publisher.publish

        def publish(batch: Any) -> None:
            own(batch)
            self.next_sequence += 1
            if self.record is not None:
                try:
                    self._record_events(self.record, batch.events)
                except Exception as error:
                    guard.failed(error)

        publisher.publish = publish

    def publish_events(self) -> None:
        """Publish now what vLLM would publish with its next step, which an idle engine may not take for hours."""
        guard = self._features.guards.get("record")
        if guard is None or not guard.on:
            return
        try:
            if (batch := events.take_batch(self._scheduler)) is not None:
                self._scheduler.kv_event_publisher.publish(batch)
        except Exception as error:
            guard.failed(error)

    def _record_events(self, record: BlockRecord, batch: list[Any]) -> None:
        for event in batch:
            if isinstance(event, events.BlockStored):
                if id(event) in self._repeats:
                    self._repeats.discard(id(event))
                else:
                    record.stored(event)
            elif isinstance(event, events.BlockRemoved):
                record.removed(event)
            elif isinstance(event, events.AllBlocksCleared):
                record.cleared()

    def _watch_repeated_events(self, pool: Any, guard: Guard) -> None:
        """Note events of reused blocks, which a client may request (`kv_cache_report_mode`): they add no copy."""
        own = pool.emit_cached_block_events

        def emit(*args: Any, **kwargs: Any) -> Any:
            before = len(pool.kv_event_queue)
            result = own(*args, **kwargs)
            if self.record is not None:
                try:
                    self._repeats.update(map(id, pool.kv_event_queue[before:]))
                except Exception as error:
                    guard.failed(error)
            return result

        pool.emit_cached_block_events = emit

    def _forget(self) -> None:
        self.record = None

    def stepped(self) -> None:
        """The device has finished a step."""
        self._last_step = self._clock()

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, name: str, body: bytes) -> Answer | Future[Answer]:
        """Answer one question. Never raises: vLLM would log an exception here as its own."""
        try:
            return self._answers[name](body)
        except RefusedError as refusal:
            return _error(refusal.status, str(refusal))
        except RecursionError:  # only a body can be nested
            return _error(400, f"{name}: the body is nested too deeply")
        except Exception as error:
            self._features.counters.add("failures", label="routes")
            _log.exception("plumage: %s could not be answered", name)
            return _error(500, f"{name}: {type(error).__name__}: {error}")

    def _take_snapshot(self, _: bytes) -> Answer | Future[Answer]:
        if self.record is None:
            raise RefusedError(404, "no snapshot: KV events are off (--kv-events-config), or could not be read")
        snapshot = self._snapshot()
        if snapshot is None or snapshot.done():
            rows, beyond, seq = self.record.rows(), self.record.beyond, self.next_sequence - 1
            size = self._scheduler.block_size
            snapshot = self._encoder.submit(lambda: (200, encode(rows, seq=seq, block_size=size, beyond=beyond)))
            self._snapshot = weakref.ref(snapshot)
        return snapshot

    def _stats(self, _: bytes) -> Answer:
        features = self._features
        return _json(
            {
                **self._figures(),
                "heldBack": features.held_back,
                "secondsSinceStep": self._clock() - self._last_step,
                "nextSequence": self.next_sequence,
                "recordedBlocks": len(self.record) if self.record is not None else 0,
                "missingBlocks": self.record.missing if self.record is not None else 0,
                "rankedChunks": len(self.hotness),
                "counters": features.counters.by_name(),
                **self._step_time(),
                **features.kv_metrics(),
                "features": {name: guard.report() for name, guard in features.guards.items()},
            }
        )

    def _figures(self) -> dict[str, float]:
        """vLLM's own figures. One that can't be read is left out, and reported once, at start."""
        found: dict[str, float] = {}
        missing: list[str] = []
        for name, read in _FIGURES.items():
            try:
                found[name] = read(self._scheduler)
            except Exception as error:
                missing.append(f"without {name}: {type(error).__name__}: {error}")
        if missing and "stats" not in self._features.guards:
            guard = self._features.guards["stats"] = Guard("stats", self._features.counters)
            guard.refuse(missing)
        return found

    def _step_time(self) -> dict[str, Any]:
        """What the policy Predictive has learned. Empty for another policy, and before there is a fit."""
        order = self._features.order
        policy = getattr(order.queue, "policy", None) if order is not None else None
        if not isinstance(policy, Predictive) or not isfinite(policy.step_time.noise):
            return {}
        return {"stepTime": policy.step_time.coefficients, "stepTimeError": policy.step_time.noise}

    def _tables(self, _: bytes) -> Answer:
        learner = self._learner()
        return _json(LearnedTable(self._own_fingerprint(), self._policy_name(), list(learner.rows()), self._life))

    def _learn(self, body: bytes) -> Answer:
        learner = self._learner()
        try:
            table = msgspec.json.decode(body, type=LearnedTable)
            rows = checked(table.rows)
            if (table.fingerprint, table.policy) != (self._own_fingerprint(), self._policy_name()):
                raise RefusedError(409, "the table was learned by another model, device or configuration")
            learner.merge(rows)
        except (msgspec.DecodeError, ConfigurationError, RecursionError) as error:
            self._features.counters.add("tables_refused")
            raise RefusedError(400, f"the body must be a learned table: {error}") from error
        except RefusedError:
            self._features.counters.add("tables_refused")
            raise
        self._features.counters.add("tables_adopted")
        return 204, b""

    def _update_hotness(self, body: bytes) -> Answer:
        if "hostTier" not in self._features.guards:
            raise RefusedError(404, "this engine has no host tier of the plugin, so hotness has no use")
        try:
            uses = msgspec.json.decode(body, type=HotnessReport).uses
        except msgspec.DecodeError as error:
            raise RefusedError(400, f'the body must be {{"uses": {{"BLOCK HASH": uses}}}}: {error}') from error
        if len(uses) > MAX_CHUNKS:
            raise RefusedError(413, f"at most {MAX_CHUNKS} chunks may be ranked, got {len(uses)}")
        self.hotness.update(uses)
        return 204, b""

    def _change_feather(self, body: bytes) -> Answer:
        """Change the policy. Its learned table is dropped and the life changes: agents treat it as another engine's."""
        try:
            changed = self._features.change_feather(read_feather(body))
        except ConfigurationError as error:
            raise RefusedError(400, str(error)) from error
        if changed:
            self._fingerprint, self._life = None, secrets.token_hex(8)
        return 204, b""

    def _learner(self) -> SharesTable:
        order = self._features.order
        policy = getattr(order.queue, "policy", None) if order is not None else None
        if not isinstance(policy, SharesTable):
            raise RefusedError(404, f"the queue {self._policy_name() or 'of vLLM'} shares nothing")
        return policy

    def _policy_name(self) -> str:
        feather = self._features.settings.feather
        return feather.policy if feather is not None else ""

    def _own_fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._scheduler.vllm_config, self._features.settings)
        return self._fingerprint


def _answer_utility_call(core: Any, name: str, body: bytes) -> Answer | Future[Answer]:
    """Becomes `EngineCore.plumage`."""
    routes: EngineRoutes = core.scheduler.routes
    return routes.answer(name, body)


def _json(value: Any) -> Answer:
    return 200, msgspec.json.encode(value)


def _error(status: int, message: str) -> Answer:
    """A message may repeat megabytes of a client's body, so it is cut."""
    text = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"
    return status, msgspec.json.encode({"error": {"message": text, "code": status}})
