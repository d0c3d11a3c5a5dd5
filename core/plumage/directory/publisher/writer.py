"""An agent's side of the directory: it says what its engine holds, and nobody else writes about that engine.

Contract: `publish`, `report` and `clear` only change memory and never wait; a task carries what they said to the
server. A server that is slow or away costs freshness: changes wait in a bounded outbox, and where that is not enough
the writer starts over with a new epoch and a whole snapshot, made from the held_chunks it keeps.

    async with DirectoryWriter(url, pool="chat", replica="chat-0") as writer:
        writer.publish([Change(chunk, Tier.GPU, tokens), Change(other, Tier.GONE)])  # once per engine step
        writer.report(state=State.READY, load=Load(running=3, waiting=0, kv_usage=0.4))

Every write may be repeated: log entries carry their own ids, so a repetition is refused by the server; the rest says
what is, not what changed. At each heartbeat the writer looks for what it wrote before: a server that came back empty,
or a failover that lost the last entries, makes it start over; a newer writer of the same replica makes it stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Any

from redis.exceptions import ResponseError

from plumage.backoff import Backoff
from plumage.directory.client.connection import UNAVAILABLE, close, connect, error_text, redacted
from plumage.directory.client.redis_pipeline import Command, RedisPipeline
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.publisher.bucket_schedule import BucketSchedule
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.publisher.outbox import Entry, Outbox, appending, weight
from plumage.directory.schema import (
    BEAT_TTL,
    BUCKETS,
    DATA_TTL,
    EPOCH_TTL,
    Beat,
    Change,
    Keys,
    Load,
    State,
    sequence,
)  # fmt: skip

__all__ = ["DirectoryWriter"]

log = logging.getLogger(__name__)

BUCKETS_AT_ONCE = 8
RESIZE_PACE = 0.02  # seconds between steps of a held_chunks that shrinks: some hundred thousand chunks a second
REPEATED = "equal or smaller"  # the server's answer to a log entry it already has


class DirectoryWriter:
    """Writes one replica's part of the directory. `engine`: what its chunks are made by (`schema.engine_name`).
    `degraded`: the server did not take the last write. `superseded`: a newer writer of this replica has registered;
    this one says nothing any more."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        replica: str,
        engine: str = "",
        heartbeat_seconds: float = 2.0,
        capacity: int = 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self.keys = Keys(pool, replica)
        self.epoch: str | None = None
        self.degraded = False
        self.superseded = False
        self.registrations = 0
        self._client = connect(url)
        self._pipeline = RedisPipeline(self._client)
        self._shown = redacted(url)
        self._engine = engine
        self._heartbeat_seconds = min(heartbeat_seconds, BEAT_TTL / 3)
        self._backoff = Backoff(rng or random.Random())
        self._held = HeldChunks(capacity)
        self._schedule = BucketSchedule()
        self._state, self._load = State.WARMING, Load()
        self._generation = 0  # grows whenever everything must be written again
        self._registered = 0  # the counter's value at our registration
        self._begun: set[str] = set()  # our epochs of which something may be left on the server
        self._outbox = Outbox()
        self._next_beat = 0.0
        self._alarm: asyncio.TimerHandle | None = None  # that the next heartbeat is due …
        self._alarm_at = 0.0  # … and which one it was set for
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # What the agent says

    def publish(self, changes: Iterable[Change]) -> None:
        """What an engine step changed; one log entry. Repetitions of what is known cost nothing."""
        records = self._held.record(changes)
        if records:
            self._put(records)

    async def rank(self, uses: Mapping[int, int]) -> None:
        """How often chunks were used, hottest first: at capacity the coldest go for hotter ones. See `HeldChunks`.
        Others get the loop now and then: there may be hundreds of thousands."""
        for records in self._held.rank(uses):
            if records:
                self._put(records)
            await asyncio.sleep(0)

    async def resize(self, capacity: int) -> None:
        """So many chunks at most from now on: the coldest of too many go, at a pace that a server follows."""
        for records in self._held.resize(capacity):
            if records:
                self._put(records)
            await asyncio.sleep(RESIZE_PACE)

    def report(self, *, state: State | None = None, load: Load | None = None) -> None:
        """The next heartbeat's news; a new state is told at once."""
        if load is not None:
            self._load = load
        if state is not None and state is not self._state:
            self._state = state
            self._next_beat = 0.0
            self._wake.set()

    def clear(self) -> None:
        """The engine holds nothing any more: it restarted, or reset its prefix cache."""
        self._held.clear()
        self._start_over()

    @property
    def count(self) -> int:
        """Chunks held, as told to the routers."""
        return self._held.count

    @property
    def digest(self) -> int:
        return self._held.digest

    @property
    def behind(self) -> int:
        """Log entries that the server has not taken yet."""
        return len(self._outbox)

    @property
    def full(self) -> bool:
        """Whether a new chunk comes in only for a colder one."""
        return self._held.full

    @property
    def left_out(self) -> int:
        """How often a chunk was not taken, or went for a hotter one, because the held_chunks is full."""
        return self._held.refused + self._held.displaced

    def _put(self, records: bytes, check: tuple[int, int] | None = None) -> None:
        self._outbox.put(records, check)
        if self._outbox.full:
            self._start_over()
        self._wake.set()

    def _start_over(self) -> None:
        self._outbox.clear()
        self._generation += 1
        self.epoch = None
        self._wake.set()

    # The task

    async def __aenter__(self) -> DirectoryWriter:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name=f"directory writer of {self.keys.replica}")

    async def close(self, *, forget: bool = True) -> None:
        """Stop. `forget` takes back what was written, so that routers need not wait for the heartbeat to lapse."""
        if self._task is not None:
            await end([self._task])
            self._task = None
        with contextlib.suppress(*UNAVAILABLE):
            if forget and self.epoch is not None and not self.superseded and not self.degraded:
                await self._client.unlink(self.keys.beat, self.keys.snap(self.epoch), self.keys.log(self.epoch))
        if self._alarm is not None:
            self._alarm.cancel()
        await self._pipeline.close()
        await close(self._client)

    async def run(self) -> None:
        """Carry what was said to the server until cancelled, or until a newer writer takes over."""
        what = f"directory {self._shown}: writing {self.keys.replica}"
        await run_forever(self._turn, what, backoff=self._backoff, failed=self._failed, done=lambda: self.superseded)

    async def _turn(self) -> None:
        await self._work()
        self._back()
        await self._pause()

    def _failed(self, error: Exception) -> None:
        self._away(error)
        if not isinstance(error, UNAVAILABLE):  # it may have got anywhere: all of it is written again
            self._start_over()

    async def _work(self) -> None:
        epoch = self.epoch
        if epoch is None:
            await self._register()
        elif time.monotonic() >= self._next_beat:
            await self._heartbeat(epoch)
        elif self._outbox:
            await self._send(epoch, beat=False)

    async def _pause(self) -> None:
        """Until there is something to say or a heartbeat is due."""
        if self._outbox or self.epoch is None:
            return
        self._wake.clear()
        self._set_alarm()
        await self._wake.wait()

    def _set_alarm(self) -> None:
        """One timer a heartbeat: there are dozens of pauses in between."""
        if self._alarm is not None and self._alarm_at != self._next_beat:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm_at = self._next_beat
            delay = max(0.0, self._next_beat - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        """It may ring a little early; the next pause sets it again then."""
        self._alarm = None
        self._wake.set()

    def _away(self, error: BaseException) -> None:
        if not self.degraded:
            log.warning(
                "directory %s does not take writes of %s: %s", self._shown, self.keys.replica, error_text(error)
            )
        self.degraded = True

    def _back(self) -> None:
        if self.degraded:
            log.info("directory %s takes writes of %s again", self._shown, self.keys.replica)
        self.degraded = False

    # Registration, heartbeat, entries

    async def _register(self) -> None:
        """A new epoch with a whole snapshot. Routers see it when the heartbeat names it, after all else is there."""
        generation, client, keys = self._generation, self._client, self.keys
        registered = int(await client.incr(keys.epoch))
        await client.expire(keys.epoch, EPOCH_TTL)
        found: Any = await client.hget(keys.beat, "epoch")
        previous = {found.decode(errors="replace")} if found else set()  # routers read it
        await self._clean(self._begun - previous)
        epoch = f"{registered}.{secrets.token_hex(4)}"
        self._begun = {epoch} | previous
        self._outbox.clear()
        self._check_mark()  # the log's first entry, so that there is a log to look for
        await self._write_snapshot(epoch)
        if generation != self._generation:
            return
        self.epoch, self._registered = epoch, registered
        self.registrations += 1
        await self._send(epoch, beat=True)
        await self._clean(previous)
        self._begun = {epoch}

    async def _clean(self, epochs: Iterable[str]) -> None:
        """Remove what these left behind: what a server took just after it had lost all has no lifetime."""
        for epoch in epochs:
            await self._client.unlink(self.keys.snap(epoch), self.keys.log(epoch))

    async def _write_snapshot(self, epoch: str) -> None:
        self._schedule.begin()
        for first in range(0, BUCKETS, BUCKETS_AT_ONCE):
            commands = self._buckets(epoch, range(first, first + BUCKETS_AT_ONCE))
            commands.append(("EXPIRE", self.keys.snap(epoch), DATA_TTL))
            self._judge(await self._pipeline.execute(commands))

    def _buckets(self, epoch: str, buckets: Iterable[int]) -> list[Command]:
        commands: list[Command] = []
        for number in buckets:
            commands.append(("HSET", self.keys.snap(epoch), number, self._held.bucket(number, self._outbox.made)))
            self._schedule.seqs[number] = self._outbox.made
        return commands

    async def _heartbeat(self, epoch: str) -> None:
        """Look for what was written before, then write the heartbeat."""
        pipe = self._client.pipeline(transaction=False)
        pipe.get(self.keys.epoch)
        pipe.xinfo_stream(self.keys.log(epoch))
        counter, stream = await pipe.execute(raise_on_error=False)
        if self.epoch != epoch:
            return  # the engine was emptied meanwhile: everything must be written again
        if counter is not None and not isinstance(counter, Exception) and int(counter) > self._registered:
            self.superseded = True
            log.error("another writer registered replica %s; this one stops", self.keys.replica)
        elif counter is None or isinstance(stream, Exception) or self._lost(stream):
            log.warning("directory %s lost entries of %s; writing all of them again", self._shown, self.keys.replica)
            self._start_over()
        else:
            if self._outbox.marked != self._outbox.made:
                self._check_mark()
            await self._send(epoch, beat=True)

    def _lost(self, stream: dict[str, Any]) -> bool:
        """A failover may lose the last entries although the server acknowledged them."""
        return sequence(stream["last-generated-id"]) < self._outbox.taken

    def _check_mark(self) -> None:
        self._put(b"", (self._held.count, self._held.digest))

    async def _send(self, epoch: str, *, beat: bool) -> None:
        """The next entries, the buckets they make due, and the heartbeat, in one round trip."""
        generation = self._generation
        batch = self._outbox.batch()
        due = appending(self.keys.log(epoch), batch) + self._roll(epoch, batch)
        if beat:
            due += self._beat(epoch)
        if due:
            self._judge(await self._pipeline.execute(due))
        if batch and generation == self._generation:
            self._outbox.sent(batch)
        while generation == self._generation and (due := self._roll(epoch, ())):  # a large batch owes more of them
            self._judge(await self._pipeline.execute(due))

    def _roll(self, epoch: str, batch: Sequence[Entry]) -> list[Command]:
        due = self._buckets(epoch, self._schedule.due(weight(batch), self._held.count))
        if due:
            due.append(("XTRIM", self.keys.log(epoch), "MINID", f"{self._schedule.trim_before}-0"))
        return due

    def _beat(self, epoch: str) -> list[Command]:
        held, keys = self._held, self.keys
        beat = Beat(epoch, self._state, self._load, self._outbox.made, held.count, held.digest, self._engine)
        self._next_beat = time.monotonic() + self._heartbeat_seconds
        return [
            ("HSET", keys.beat, *chain.from_iterable(beat.to_hash().items())),
            ("PEXPIRE", keys.beat, int(BEAT_TTL * 1000)),
            ("EXPIRE", keys.epoch, EPOCH_TTL),
            ("EXPIRE", keys.snap(epoch), DATA_TTL),
            ("EXPIRE", keys.log(epoch), DATA_TTL),
        ]

    def _judge(self, results: Sequence[Any]) -> None:
        """A refused write leaves a hole that only a new epoch closes; a refused repetition is what we want."""
        for result in results:
            if isinstance(result, ResponseError) and REPEATED in str(result):
                continue
            if isinstance(result, Exception):
                self._start_over()
                raise result
