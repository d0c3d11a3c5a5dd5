"""The event stream with a real publisher that loses, repeats, reorders, forgets and restarts.

Each test asserts the final state of the sink, not the messages that led to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from support.agents import until

from plumage_engine.agent.events.stream import EventStream
from plumage_engine.kv_events import BlockRemoved, BlockStored, EventBatch, Row, Snapshot


class Held:
    """A sink that keeps what is cached after all events that it received."""

    def __init__(self) -> None:
        self.blocks: set[Any] = set()
        self.resets = 0
        self.loads = 0

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored):
                assert not self.blocks & set(event.block_hashes), "applied twice"
                self.blocks |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.blocks -= set(event.block_hashes)

    def load(self, snapshot: Snapshot) -> None:
        self.loads += 1
        self.blocks = {row.block_hash for row in snapshot.blocks}

    def reset(self) -> None:
        self.resets += 1
        self.blocks = set()

    def flush(self) -> None:
        pass


def stored(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [], "block_size": 4}


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}


def snapshot_of(seq: int, *hashes: int) -> Snapshot:
    return Snapshot(1, seq, 4, [Row(number, None, []) for number in hashes])


@asynccontextmanager
async def following(publisher: Any, sink: Held, snapshot: Snapshot | None = None, replay: bool = True, **options: Any):
    async def engine_snapshot() -> Snapshot | None:
        return snapshot

    resume = options.pop("resume", None)
    stream = EventStream(
        publisher.endpoint, publisher.replay_endpoint if replay else None, sink, engine_snapshot, **options
    )
    if resume is not None:
        stream.resume(*resume)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def at(stream: EventStream, seq: int) -> None:
    await until(lambda: stream.last == seq and stream.synced.is_set(), lambda: (stream.last, stream.counters))


@pytest.fixture
def sink() -> Held:
    return Held()


Start = Callable[..., Any]


async def test_live_batches_arrive_in_order(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    async with following(publisher, sink) as stream:
        await at(stream, -1)
        for number in range(300):
            publisher.publish(stored(number), *([removed(number - 10)] if number >= 10 else []))
        await at(stream, 299)
    assert sink.blocks == set(range(290, 300))
    assert (stream.counters.gaps, sink.loads, sink.resets) == (0, 0, 0)


async def test_late_agent_reads_whole_history(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    for number in range(2000):
        publisher.publish(stored(number))
    async with following(publisher, sink) as stream:
        await at(stream, 1999)
    assert sink.blocks == set(range(2000))


async def test_lost_batches_are_replayed(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    async with following(publisher, sink, snapshot_of(99, 7)) as stream:
        await at(stream, -1)
        publisher.publish(stored(1))
        publisher.lose(stored(2))
        publisher.lose(removed(1))
        publisher.publish(stored(3))
        await at(stream, 3)
    assert sink.blocks == {2, 3}
    assert (stream.counters.gaps, sink.loads, sink.resets) == (1, 0, 0)


async def test_lost_last_batch_is_replayed(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    async with following(publisher, sink) as stream:
        await at(stream, -1)
        publisher.publish(stored(1))
        await at(stream, 0)
        publisher.lose(stored(2), removed(1))
        await at(stream, 1)
    assert sink.blocks == {2}
    assert (stream.counters.gaps, sink.loads, sink.resets) == (0, 0, 0)


async def test_repeated_and_reordered_batches_change_nothing(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    async with following(publisher, sink) as stream:
        await at(stream, -1)
        publisher.publish(stored(1))
        late = publisher.lose(stored(2))
        publisher.publish(stored(3))
        publisher.send(late)
        publisher.send(0)
        publisher.publish(stored(4))
        await at(stream, 3)
        await until(lambda: stream.counters.repeats >= 2)
    assert sink.blocks == {1, 2, 3, 4}
    assert sink.resets == 0


async def test_gap_beyond_replay_reads_snapshot(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher(kept=2)
    async with following(publisher, sink, snapshot_of(8, 40, 41)) as stream:
        await at(stream, -1)
        publisher.publish(stored(1))
        await at(stream, 0)
        for number in range(2, 10):
            publisher.lose(stored(number))
        publisher.publish(stored(10))
        await at(stream, 9)
    assert sink.blocks == {40, 41, 10}
    assert (sink.loads, sink.resets) == (1, 0)


async def test_gap_without_snapshot_restarts_from_replay(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher(kept=2)
    async with following(publisher, sink) as stream:
        await at(stream, -1)
        publisher.publish(stored(1))
        await at(stream, 0)
        for number in range(2, 10):
            publisher.lose(stored(number))
        publisher.publish(stored(10))
        await at(stream, 9)
    assert sink.blocks == {9, 10}
    assert stream.counters.starts_over == 1


async def test_gap_without_replay_restarts_from_live_batches(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    publisher.publish(stored(1))
    async with following(publisher, sink, replay=False) as stream:
        await at(stream, -1)
        await until(publisher.subscribed)
        publisher.publish(stored(2))
        publisher.publish(stored(3))
        await at(stream, 2)
        assert sink.blocks == {2, 3}
        publisher.lose(stored(4))
        publisher.publish(stored(5))
        await at(stream, 4)
    assert sink.blocks == {5}


async def test_silent_replay_endpoint_is_ignored(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher(replay=False)
    async with following(publisher, sink, replay_silence=0.1) as stream:
        await at(stream, -1)
        await until(publisher.subscribed)
        publisher.publish(stored(1))
        await at(stream, 0)
    assert sink.blocks == {1}


async def test_restarted_engine_clears_old_blocks(start_publisher: Start, sink: Held) -> None:
    old = start_publisher()
    async with following(old, sink) as stream:
        await at(stream, -1)
        for number in range(5):
            old.publish(stored(number))
        await at(stream, 4)
        old.close()
        new = start_publisher()
        new.publish(stored(100))
        await until(lambda: sink.blocks == {100}, lambda: (sink.blocks, stream.counters))
        new.publish(stored(101))
        await at(stream, 1)
    assert sink.blocks == {100, 101}
    assert sink.resets == 1


async def test_restarted_idle_engine_is_detected(start_publisher: Start, sink: Held) -> None:
    old = start_publisher()
    async with following(old, sink) as stream:
        await at(stream, -1)
        old.publish(stored(1))
        await at(stream, 0)
        old.close()
        start_publisher()
        await until(lambda: sink.resets == 1)
        await at(stream, -1)
    assert sink.blocks == set()


async def test_restarted_engine_with_expected_number_is_detected(start_publisher: Start, sink: Held) -> None:
    """Its next number is the expected one, but that must not be enough."""
    old = start_publisher()
    async with following(old, sink) as stream:
        await at(stream, -1)
        for number in range(3):
            old.publish(stored(number))
        await at(stream, 2)
        old.close()
        new = start_publisher()
        for number in range(100, 106):
            new.publish(stored(number))
        await at(stream, 5)
    assert sink.blocks == set(range(100, 106))
    assert sink.resets == 1


async def test_engine_started_later_is_read(start_publisher: Start, sink: Held, tmp_path: Any) -> None:
    publisher = start_publisher()
    publisher.close()
    async with following(publisher, sink) as stream:
        await asyncio.sleep(0.2)
        late = start_publisher()
        late.publish(stored(1))
        await at(stream, 0)
    assert sink.blocks == {1}


async def test_other_topics_are_ignored_and_malformed_messages_counted(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher()
    async with following(publisher, sink, topic="kv@pod") as stream:
        await at(stream, -1)
        await until(publisher.subscribed)
        publisher.send_raw(b"kv@other", (0).to_bytes(8, "big"), b"\x93\x00\x90\x00")
        publisher.send_raw(b"kv@pod", b"alone")
        publisher.send_raw(b"kv@pod", (0).to_bytes(8, "big"), b"rubbish")
        publisher.publish(stored(1))
        await at(stream, 0)
    assert sink.blocks == {1}
    assert stream.counters.malformed == 2


async def test_live_batches_apply_after_pending_snapshot(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher(kept=1)
    asked = asyncio.Event()
    answer: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()

    async def slow_snapshot() -> Snapshot:
        asked.set()
        return await asyncio.shield(answer)

    @asynccontextmanager
    async def slow() -> AsyncIterator[EventStream]:
        stream = EventStream(publisher.endpoint, publisher.replay_endpoint, sink, slow_snapshot)
        task = asyncio.create_task(stream.run())
        yield stream
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    publisher.lose(stored(1))
    publisher.lose(stored(2))
    async with slow() as stream:
        await asyncio.wait_for(asked.wait(), 30)
        await until(publisher.subscribed)
        publisher.publish(stored(3))
        publisher.publish(removed(1))
        await until(lambda: len(stream._waiting) == 2)
        answer.set_result(snapshot_of(2, 1, 2, 3))
        await at(stream, 3)
    assert sink.blocks == {2, 3}


async def test_stream_resumes_at_saved_position(start_publisher: Start, sink: Held) -> None:
    publisher = start_publisher(kept=3)
    async with following(publisher, sink) as stream:
        await at(stream, -1)
        for number in range(5):
            publisher.publish(stored(number))
        await at(stream, 4)
        position = stream.position
    publisher.publish(stored(5))
    async with following(publisher, sink, resume=position) as stream:
        await at(stream, 5)
    assert sink.blocks == set(range(6))
    assert sink.resets == 0


async def test_saved_position_is_discarded_after_engine_restart(start_publisher: Start, sink: Held) -> None:
    old = start_publisher()
    async with following(old, sink) as stream:
        await at(stream, -1)
        old.publish(stored(1))
        await at(stream, 0)
        position = stream.position
    old.close()
    new = start_publisher()
    new.publish(stored(100))
    new.publish(stored(101))
    async with following(new, sink, resume=position) as stream:
        await at(stream, 1)
    assert sink.blocks == {100, 101}
    assert sink.resets == 1


async def test_error_of_the_sink_ends_the_stream(start_publisher: Start) -> None:
    class Broken(Held):
        def apply(self, batch: EventBatch) -> None:
            raise RuntimeError("a bug")

    publisher = start_publisher()
    publisher.publish(stored(1))

    async def none() -> None:
        return None

    stream = EventStream(publisher.endpoint, publisher.replay_endpoint, Broken(), none)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(stream.run(), 30)
