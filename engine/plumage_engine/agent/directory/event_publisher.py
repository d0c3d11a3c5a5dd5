"""The event stream's sink: it indexes the engine's events and publishes the changes to the directory.

After each burst of events the directory's writer gets the net changes, in one log entry. After a restart of the engine
the writer begins a new epoch, so that no router keeps a chunk of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from plumage.directory.schema import Change
from plumage_engine.agent.directory.throttle import Throttle
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.kv_events import EventBatch, Snapshot

__all__ = ["EventPublisher", "Publisher"]


class Publisher(Protocol):
    """The part of the directory's writer that is needed here."""

    def publish(self, changes: Iterable[Change]) -> None: ...

    def clear(self) -> None: ...


class EventPublisher:
    """Index, throttle and writer of one engine; measures the CPU that events cost."""

    def __init__(self, index: CacheIndex, throttle: Throttle, publisher: Publisher) -> None:
        self.index = index
        self.throttle = throttle
        self._publisher = publisher
        self._cpu = 0.0

    @property
    def cpu_micros_per_block(self) -> float:
        """CPU of indexing and publishing, decoding and sockets left out."""
        events = self.index.counters.stored + self.index.counters.removed
        return self._cpu / events * 1e6 if events else 0.0

    def apply(self, batch: EventBatch) -> None:
        started = time.thread_time()
        for event in batch.events:
            self.index.apply(event)
        self._cpu += time.thread_time() - started

    def load(self, snapshot: Snapshot) -> None:
        self.index.load(snapshot.blocks, snapshot.block_size)

    def reset(self) -> None:
        self.index.clear()
        self.index.changes()  # the new epoch removes them all
        self.throttle.clear()
        self._publisher.clear()

    def flush(self) -> None:
        started = time.thread_time()
        changes = self.throttle.pass_on(self.index.changes(), time.monotonic())
        if changes:
            self._publisher.publish(changes)
        self._cpu += time.thread_time() - started
