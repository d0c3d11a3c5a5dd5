"""A background task continues after any error: it logs each kind once, counts each error, and pauses."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from support.conditions import until

from plumage.backoff import Backoff
from plumage.directory.client import tasks
from plumage.directory.client.tasks import KINDS, end, run_forever
from plumage.directory.mirror.log_reader import LogReader
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.directory.sharing.shared_stream import SharedStream
from plumage.directory.sharing.work_share import WorkShare

NOWHERE = "unix:///nowhere/directory.sock"


class Waits(Backoff):
    """Counts the waits and waits for nothing."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.waits = 0

    def next(self) -> float:
        super().next()
        self.waits += 1
        return 0.0


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait between two attempts."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)


async def run(errors: Iterator[Exception | None]) -> tuple[list[Exception], Waits]:
    """`run_forever` through these turns, to their end."""
    reported: list[Exception] = []
    backoff, ended = Waits(), False

    async def turn() -> None:
        nonlocal ended
        error = next(errors, StopAsyncIteration)
        if error is StopAsyncIteration:
            ended = True
        elif error is not None:
            raise error

    await run_forever(turn, "the task", backoff=backoff, failed=reported.append, done=lambda: ended)
    return reported, backoff


async def test_error_is_logged_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    errors = [ValueError("one"), None, ValueError("two"), KeyError("three"), KeyError("four")]
    reported, _ = await run(iter(errors))
    assert reported == [error for error in errors if error is not None]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError, KeyError]
    assert all("the task" in record.getMessage() for record in caplog.records)


async def test_unreachable_server_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    reported, _ = await run(iter([RedisConnectionError("gone"), TimeoutError(), OSError("no route")]))
    assert len(reported) == 3
    assert not caplog.records


async def test_pauses_after_each_error_and_resets_after_a_good_turn() -> None:
    _, backoff = await run(iter([ValueError("a"), ValueError("b"), None]))
    assert backoff.waits == 2
    assert backoff.failures == 0


async def test_logged_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    kinds = [type(f"Kind{number}Error", (Exception,), {}) for number in range(KINDS + 5)]
    reported, _ = await run(iter([kind() for kind in kinds]))
    assert len(reported) == KINDS + 5
    assert len(caplog.records) == KINDS


async def test_task_can_be_cancelled() -> None:
    async def turn() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(run_forever(turn, "x", backoff=Backoff(random.Random(1)), failed=lambda error: None))
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()


def logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.name == tasks.__name__ and record.levelno == logging.ERROR for record in caplog.records)


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("a mistake of ours")


@pytest.mark.usefixtures("_at_once")
async def test_exchange_continues(caplog: pytest.LogCaptureFixture) -> None:
    exchange = SharedStream(NOWHERE, "key", make=broken, take=None, period=0.0, longest=1, lifetime=1)
    exchange.start()
    await until(lambda: exchange.counts["failures"] > 2, pause=0)
    await exchange.close()
    assert logged(caplog) == 1


@pytest.mark.usefixtures("_at_once")
async def test_offers_continue(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    share = WorkShare(NOWHERE, pool="chat", router="r", mirror=Mirror(64), work=dict, policies=tuple)
    monkeypatch.setattr(share.stream, "start", lambda: None)
    monkeypatch.setattr(share.learned, "exchange", broken)
    share.start()
    await until(lambda: share.learned.counts["failures"] > 2, pause=0)
    await share.close()
    assert logged(caplog) == 1


@pytest.mark.usefixtures("_at_once")
async def test_hotness_continues(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    share = HotnessShare(NOWHERE, pool="chat")
    monkeypatch.setattr(share.stream.client, "get", broken)
    share.start()
    await until(lambda: share.stream.counts["failures"] > 2, pause=0)
    await share.close()
    assert logged(caplog) == 1


@pytest.mark.usefixtures("_at_once")
async def test_heartbeats_continue(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = DirectorySync(NOWHERE, pool="chat", mirror=Mirror(64))
    monkeypatch.setattr(sync, "_poll", broken)
    sync.start()
    await until(lambda: sync.counts["failures"] > 2, pause=0)
    await sync.close()
    assert logged(caplog) == 1


async def test_snapshot_is_retried(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage.directory.mirror.snapshot_loader.read_snapshot", broken)
    sync = DirectorySync(NOWHERE, pool="chat", mirror=Mirror(64))
    known = ReplicaView("chat", "chat-0", LogReader(sync.mirror, 0), Backoff(random.Random(1)))
    for _ in range(2):
        await sync._snapshots.load(known, "1.a")
    assert known.not_before > 0.0
    assert sync.counts["failures"] == 2
    assert logged(caplog) == 1
    await sync.close()


@pytest.mark.usefixtures("_at_once")
async def test_writer_restarts_after_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectoryWriter(NOWHERE, pool="chat", replica="chat-0")
    turns = 0

    async def work() -> None:
        nonlocal turns
        turns += 1
        writer._publication.epoch = "1.a"
        broken()

    monkeypatch.setattr(writer._loop, "_write", work)
    writer.start()
    await until(lambda: turns > 2, pause=0)
    assert writer.degraded
    assert writer.epoch is None
    await writer.close()
    assert logged(caplog) == 1
