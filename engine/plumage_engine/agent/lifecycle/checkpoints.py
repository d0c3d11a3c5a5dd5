"""Saves the index to a file at intervals, and restores it when the agent starts: for engines without a snapshot route.

Beside a stock vLLM a restarted agent knows only the batches that the replay still has. So the agent writes its index to
a file, with the number and time of the last batch. The event stream verifies it by a replay, or discards it. The file
holds salts and up to 255 bytes of prompt text a block. It belongs on the pod's emptyDir, and only its owner can read
it. A file that is torn, or of another version or model, is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import msgspec

from plumage_engine.agent.events.stream import EventStream
from plumage_engine.agent.index.block import VERSION, Checkpoint
from plumage_engine.agent.index.cache_index import CacheIndex

__all__ = ["Checkpoints", "read", "write"]

log = logging.getLogger(__name__)

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
        saved = read(self._path, self._model) if self._path is not None else None
        if saved is not None:
            self._index.restore(saved)
            self._stream.resume(saved.seq, saved.ts)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            if (path := self._writable()) is not None:
                saved = self._index.save(*self._stream.position)
                await asyncio.to_thread(write, path, saved)  # half a million blocks take a second

    def save(self) -> None:
        if (path := self._writable()) is not None:
            write(path, self._index.save(*self._stream.position))

    def _writable(self) -> Path | None:
        """The file's path; None while the index is incomplete, which a checkpoint must never be."""
        return self._path if self._stream.synced.is_set() else None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file atomically. An error, such as a full disk, is logged."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.msgpack.encode(checkpoint))
        draft.replace(path)
    except OSError as error:
        log.warning("cannot write the checkpoint %s: %s", path, error.strerror)
        draft.unlink(missing_ok=True)


def read(path: Path, model: str) -> Checkpoint | None:
    """The checkpoint of this model; None where there is none that can be used."""
    try:
        checkpoint = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the checkpoint %s can't be read: %s", path, type(error).__name__)
        return None
    return checkpoint if (checkpoint.version, checkpoint.model) == (VERSION, model) else None
