"""The engine's replay socket: batches that the engine still has, from a number on."""

from __future__ import annotations

import asyncio
from typing import Protocol

import zmq
import zmq.asyncio

from plumage_engine.kv_events import END_OF_REPLAY, EventBatch, WireError, decode_batch

__all__ = ["REPLAY_SILENCE", "ReplayCounter", "ReplaySocket"]

REPLAY_SILENCE = 2.0  # seconds without a replayed batch; vLLM polls its replay socket ten times a second
REPLAY_LIMIT = 20_000  # batches in one replay


class ReplayCounter(Protocol):
    """replays: how many were asked for."""

    replays: int


class ReplaySocket:
    """endpoint: None where the engine has none. silence: seconds without a batch until a replay counts as unanswered.

    silences: replays in a row that had no answer."""

    def __init__(self, endpoint: str | None, counter: ReplayCounter, silence: float = REPLAY_SILENCE) -> None:
        self.endpoint = endpoint
        self.silences = 0
        self._counter = counter
        self._silence = silence

    async def read(self, start: int) -> list[tuple[int, EventBatch]] | None:
        """The batches that the engine still has from `start` on. None without an endpoint or an answer."""
        if self.endpoint is None:
            return None
        self._counter.replays += 1
        context = zmq.asyncio.Context()
        asked = context.socket(zmq.DEALER)
        try:
            asked.set_hwm(0)
            asked.connect(self.endpoint)
            async with asyncio.timeout(self._silence):
                await asked.send_multipart([b"", start.to_bytes(8, "big")])
            replayed = await self._until_end(asked)
            self.silences = 0
        except TimeoutError:
            self.silences += 1
            return None
        else:
            return replayed
        finally:
            context.destroy(linger=0)

    async def _until_end(self, asked: zmq.asyncio.Socket) -> list[tuple[int, EventBatch]]:
        batches: list[tuple[int, EventBatch]] = []
        while len(batches) < REPLAY_LIMIT:
            async with asyncio.timeout(self._silence):
                frames = await asked.recv_multipart()
            if len(frames) < 2:
                raise WireError("a replayed message has no number and payload")
            if frames[-2] == END_OF_REPLAY:
                break
            batches.append((int.from_bytes(frames[-2], "big"), decode_batch(frames[-1])))
        return batches
