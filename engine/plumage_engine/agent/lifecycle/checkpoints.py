"""Saves the index at intervals, and restores it when the agent starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from plumage_engine.agent.events.stream import EventStream
from plumage_engine.agent.index import checkpoint
from plumage_engine.agent.index.cache_index import CacheIndex

__all__ = ["Checkpoints"]

INTERVAL = 60.0  # seconds; the engine's replay covers more than that


class Checkpoints:
    """path: of the checkpoint file; None for no checkpoints. model: a checkpoint of another one is ignored."""

    def __init__(self, path: Path | None, model: str, index: CacheIndex, stream: EventStream) -> None:
        self._path = path
        self._model = model
        self._index = index
        self._stream = stream

    def restore(self) -> None:
        """Restore the index from the last checkpoint. The event stream then verifies it by a replay."""
        saved = checkpoint.read(self._path, self._model) if self._path is not None else None
        if saved is not None:
            self._index.restore(saved)
            self._stream.resume(saved.seq, saved.ts)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            if (path := self._writable()) is not None:
                saved = self._index.save(*self._stream.position)
                await asyncio.to_thread(checkpoint.write, path, saved)  # half a million blocks take a second

    def save(self) -> None:
        if (path := self._writable()) is not None:
            checkpoint.write(path, self._index.save(*self._stream.position))

    def _writable(self) -> Path | None:
        """The file's path; None while the index is incomplete, which a checkpoint must never be."""
        return self._path if self._stream.synced.is_set() else None
