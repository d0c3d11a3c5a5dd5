"""The loop that writes a replica's publication."""

from __future__ import annotations

import asyncio
import random

import pytest

from plumage import backoff
from plumage.directory.publisher.epoch_writer import EpochWriter
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.publisher.publication import Publication
from plumage.directory.publisher.publish_loop import HeartbeatTimer, PublishLoop
from plumage.directory.schema import Keys


class FailingOnce(EpochWriter):
    """A server that does not answer the first heartbeat."""

    def __init__(self, publication: Publication) -> None:
        super().__init__("redis://127.0.0.1:9", Keys("chat", "chat-0"), publication)
        self.heartbeats = 0

    async def heartbeat(self, epoch: str) -> None:
        self.heartbeats += 1
        if self.heartbeats == 1:
            raise ConnectionError("no answer")


async def test_loop_is_degraded_until_a_heartbeat_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff.Backoff, "next", lambda self: 0.0)
    timer = HeartbeatTimer(3600.0)
    publication = Publication(HeldChunks(), "", timer.wake)
    publication.epoch = "1.a"
    writer = FailingOnce(publication)
    loop = PublishLoop(publication, writer, timer, "writing chat-0", random.Random(1))
    heartbeats_when_recovered = []

    async def record_and_stop() -> None:
        heartbeats_when_recovered.append((writer.heartbeats, loop.degraded))
        raise asyncio.CancelledError

    monkeypatch.setattr(timer, "wait", record_and_stop)
    with pytest.raises(asyncio.CancelledError):
        await loop.run()
    assert heartbeats_when_recovered == [(2, False)]
    await writer.close(delete=False)


class Superseded(EpochWriter):
    """A server on which a newer writer of the replica has registered."""

    async def heartbeat(self, epoch: str) -> None:
        self.superseded = True


async def test_superseded_loop_ends_without_another_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = HeartbeatTimer(3600.0)
    publication = Publication(HeldChunks(), "", timer.wake)
    publication.epoch = "1.a"
    waits = []
    writer = Superseded("redis://127.0.0.1:9", Keys("chat", "chat-0"), publication)

    async def wait() -> None:
        waits.append("for a heartbeat that it will not send")

    monkeypatch.setattr(timer, "wait", wait)
    await asyncio.wait_for(PublishLoop(publication, writer, timer, "writing chat-0", random.Random(1)).run(), 10.0)
    await writer.close(delete=False)
    assert waits == []
