"""The engine's KV events over ZMQ, in order and without holes: live batches, replay, snapshot.

Contract: the `Sink` sees a consistent history. It gets batches in order (`apply`). When lost batches can't be replayed,
it gets a whole snapshot (`load`). When the engine restarted, it gets `reset` first. A stock vLLM without a replay
endpoint has neither replay nor snapshot: then the history starts over, and the index drops blocks with unknown parents.

    live batch ─ next ────────────────────────────▶ apply
               └ gap, restart, new connection ─▶ replay from the last batch ─ continues ─▶ apply
                                                  └ does not ─▶ snapshot, else replay from 0

The next batch shows that one was lost. When none follows, the stream asks for a replay once, after QUIET checks.
During a recovery, live batches wait in a bounded queue; after an overflow the recovery runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import zmq

from plumage.backoff import Backoff
from plumage.directory.client.tasks import end
from plumage_engine.agent.events.sequence import SequenceCheck, Sequencer
from plumage_engine.agent.events.sockets import REPLAY_SILENCE, LiveSocket, ReplaySocket
from plumage_engine.kv_events import EventBatch, Snapshot, WireError, decode_batch

__all__ = ["EventStream", "Sink", "StreamCounters"]

log = logging.getLogger(__name__)

BURST = 64  # replayed batches applied before the event loop gets its turn
WAITING = 10_000  # live batches kept during a recovery, as many as the engine keeps for replay
RETRY_FIRST, RETRY_MOST = 0.1, 2.0  # seconds between attempts to recover
QUIET = 2  # checks in a row without a message, a second each, until the stream asks for a replay
SILENCES = 3  # replays without an answer until the stream starts over without one


class Sink(Protocol):
    """Receives the history. Calls are synchronous: between two of them the sink is consistent."""

    def apply(self, batch: EventBatch) -> None: ...

    def load(self, snapshot: Snapshot) -> None: ...

    def reset(self) -> None:
        """The engine restarted with an empty cache."""
        ...

    def flush(self) -> None:
        """A burst has ended: publish the changes."""
        ...


@dataclass(slots=True)
class StreamCounters:
    batches: int = 0
    gaps: int = 0
    repeats: int = 0
    restarts: int = 0
    replays: int = 0
    snapshots: int = 0
    starts_over: int = 0  # neither replay nor snapshot could fill a hole
    malformed: int = 0
    overflows: int = 0


class EventStream:
    """Reads one engine's events until closed. `snapshot` asks the engine for one; None where it has no such route."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None,
        sink: Sink,
        snapshot: Callable[[], Awaitable[Snapshot | None]],
        topic: str = "",
        replay_silence: float = REPLAY_SILENCE,
    ) -> None:
        self.counters = StreamCounters()
        self.synced = asyncio.Event()  # set while the history has no hole
        self._endpoint = endpoint
        self._sink = sink
        self._snapshot = snapshot
        self._live = LiveSocket(self._endpoint, topic.encode(), self)
        self._replays = ReplaySocket(replay_endpoint, self.counters, replay_silence)
        self._sequence = Sequencer()
        self._waiting: deque[tuple[int, EventBatch]] = deque(maxlen=WAITING)
        self._recovery: asyncio.Task[None] | None = None
        self._look: asyncio.Task[None] | None = None
        self._quiet = 0  # looks since the last message
        self._closed = False
        self._suspicions = 0  # grows whenever continuity is in doubt; a recovery that saw an older one runs again

    @property
    def last(self) -> int:
        """Number of the last batch applied."""
        return self._sequence.last

    @property
    def position(self) -> tuple[int, float | None]:
        """Number and time of the last batch applied: the arguments of `resume`."""
        return self._sequence.last, self._sequence.ts

    def resume(self, seq: int, ts: float | None) -> None:
        """Call it before `run`: the sink has everything up to this batch, if the replay proves it."""
        self._sequence.advance(seq, ts)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._live.run()
        finally:
            self._closed = True
            await end([task for task in (self._recovery, self._look) if task is not None])

    # Live batches

    def take(self, frames: list[bytes]) -> None:
        """Takes one message of the live socket."""
        self._quiet = 0
        try:
            _, number, payload = frames
            seq, batch = int.from_bytes(number, "big"), decode_batch(payload)
        except (ValueError, WireError) as error:
            self.counters.malformed += 1
            log.debug("a message on %s is no event batch: %s", self._endpoint, error)
            return
        if self._recovery is None:
            self._offer(seq, batch)
        else:
            self._keep(seq, batch)

    def flush(self) -> None:
        self._sink.flush()

    def connected(self) -> None:
        self._quiet = 0
        self._start_recovery("a new connection")

    def disconnected(self) -> None:
        self.synced.clear()

    def check(self) -> None:
        """Raise the error of a background task, so that it ends the agent and not the stream alone."""
        for task in (self._recovery, self._look):
            if task is not None and task.done():
                task.result()
        self._quiet += 1
        if self._quiet == QUIET and self.synced.is_set() and self._replays.endpoint is not None:
            self._look = asyncio.create_task(self._look_back(), name="event stream look back")

    def _keep(self, seq: int, batch: EventBatch) -> None:
        if len(self._waiting) == WAITING:
            self.counters.overflows += 1
        self._waiting.append((seq, batch))

    def _offer(self, seq: int, batch: EventBatch) -> None:
        check = self._sequence.judge(seq, batch.ts)
        if check is SequenceCheck.NEXT:
            self._apply(seq, batch)
        elif check is SequenceCheck.REPEATED:
            self.counters.repeats += 1
        else:
            self.counters.gaps += check is SequenceCheck.GAP
            self._waiting.append((seq, batch))
            self._start_recovery(f"batch {seq} came after {self.last}")

    def _apply(self, seq: int, batch: EventBatch) -> None:
        self._sink.apply(batch)
        self._sequence.advance(seq, batch.ts)
        self.counters.batches += 1

    # Recovery

    def _start_recovery(self, reason: str) -> None:
        """Batches may be missing: queue live batches until a recovery has ended."""
        if self._closed:
            return
        log.debug("events on %s: %s", self._endpoint, reason)
        self.synced.clear()
        self._suspicions += 1
        if self._recovery is None:
            self._recovery = asyncio.create_task(self._recover(), name="event stream recovery")

    async def _recover(self) -> None:
        backoff = Backoff(None, RETRY_FIRST, RETRY_MOST)
        while True:
            suspicions = self._suspicions
            try:
                whole = await self._fill() and self._catch_up()
            except (zmq.ZMQError, TimeoutError, OSError, WireError) as error:
                log.debug("events on %s can't be recovered yet: %s", self._endpoint, error)
                whole = False
            self._sink.flush()
            if whole and suspicions == self._suspicions:
                break
            await asyncio.sleep(backoff.next())
        self._recovery = None
        self.synced.set()

    async def _look_back(self) -> None:
        """Whether batches after the last one were missed. An engine that does not answer now proves nothing."""
        silences = self._replays.silences
        with suppress(zmq.ZMQError, WireError):
            replayed = await self._replays.read(max(self.last, 0))
            self._replays.silences = silences
            if replayed and replayed[-1][0] > self.last:
                self._start_recovery("batches were missed")

    async def _fill(self) -> bool:
        """Apply what is missing: the replay where it continues the history, else start over. False: no answer."""
        replayed = await self._replays.read(max(self.last, 0))
        if replayed is not None and self._sequence.continues([(seq, batch.ts) for seq, batch in replayed]):
            return await self._feed(replayed)
        if self.last >= 0 and replayed is not None and self._is_restart(replayed):
            self._restart()
        snapshot = await self._snapshot()
        if snapshot is not None:
            self._load(snapshot)
            return True
        return await self._start_over()

    def _is_restart(self, replayed: list[tuple[int, EventBatch]]) -> bool:
        """A replay that begins at or before the last batch, or an empty one, is of a restarted engine. Any other replay
        is of an engine that no longer has the last batch."""
        return not replayed or replayed[0][0] <= self.last

    def _restart(self) -> None:
        log.info("the engine behind %s restarted", self._endpoint)
        self.counters.restarts += 1
        self._sequence = Sequencer()
        self._waiting.clear()  # some of them may be from before the restart
        self._suspicions += 1  # another recovery asks for dropped ones from after it
        self._sink.reset()

    def _load(self, snapshot: Snapshot) -> None:
        if snapshot.seq < self.last:
            self._restart()
        self.counters.snapshots += 1
        self._sink.load(snapshot)
        self._sequence.advance(snapshot.seq, None)

    async def _start_over(self) -> bool:
        """Without a snapshot: use everything that the replay has, or only later batches."""
        replayed = await self._replays.read(0)
        if replayed is None and self._replays.endpoint is not None and self._replays.silences < SILENCES:
            return False
        self.counters.starts_over += 1
        if self.last >= 0:
            self._sink.reset()
        known = replayed or self._waiting
        self._sequence = Sequencer()
        self._sequence.advance(known[0][0] - 1 if known else -1, None)
        return await self._feed(replayed or [])

    async def _feed(self, batches: list[tuple[int, EventBatch]]) -> bool:
        """False when batches are missing: a replay socket drops messages above its bound and reports nothing."""
        for number, (seq, batch) in enumerate(batches, start=1):
            check = self._sequence.judge(seq, batch.ts)
            if check is SequenceCheck.GAP:
                return False
            if check is SequenceCheck.NEXT:
                self._apply(seq, batch)
            if number % BURST == 0:
                self._sink.flush()
                await asyncio.sleep(0)
        return True

    def _catch_up(self) -> bool:
        """Apply the live batches that waited; False when batches are missing between them."""
        while self._waiting:
            seq, batch = self._waiting[0]
            check = self._sequence.judge(seq, batch.ts)
            if check is SequenceCheck.GAP or check is SequenceCheck.RESTARTED:
                return False
            self._waiting.popleft()
            if check is SequenceCheck.NEXT:
                self._apply(seq, batch)
            else:
                self.counters.repeats += 1
        return True
