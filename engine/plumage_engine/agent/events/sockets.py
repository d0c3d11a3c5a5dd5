"""The engine's two ZMQ sockets of KV events: PUB for live batches, and the replay of those that it still has.

The PUB socket is read cheaply: its listener gets frames in bursts, and learns of new and lost connections. It does not
use zmq.asyncio, whose futures cost more than the work on a batch. While idle, the socket wakes the event loop. While
frames arrive, it is read at a steady interval, because a wake-up for each message costs more than reading it. So the
changes of several engine steps are written to the directory at once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from plumage_engine.kv_events import END_OF_REPLAY, EventBatch, WireError, decode_batch

__all__ = ["REPLAY_SILENCE", "Listener", "LiveSocket", "ReplayCounter", "ReplaySocket"]

BURST = 64  # messages read before the event loop gets its turn
JOINING = 0.1  # seconds from a connection until the engine knows our subscription
PACE = 0.025  # seconds between reads while messages flow: an event waits half of it on average
EMPTY = 5  # reads in a row with nothing to read until the socket wakes us again
READABLE = int(zmq.POLLIN)  # as an enum it would cost more to compare than to read
NUDGE = 1.0  # seconds; ZMQ's descriptor signals edges, a lost one must not stop the stream
REPLAY_SILENCE = 2.0  # seconds without a replayed batch; vLLM polls its replay socket ten times a second
REPLAY_LIMIT = 20_000  # batches in one replay


class Listener(Protocol):
    """Called from the event loop, one call at a time. What it raises ends `LiveSocket.run`."""

    def take(self, frames: list[bytes]) -> None:
        """Takes one message."""
        ...

    def flush(self) -> None:
        """A burst is over."""
        ...

    def connected(self) -> None:
        """Messages come again; some may have been lost before."""
        ...

    def disconnected(self) -> None: ...

    def check(self) -> None:
        """Called now and then; raises when the listener can't go on."""
        ...


class LiveSocket:
    """Subscribes to `topic` at `endpoint` for as long as `run` runs."""

    def __init__(self, endpoint: str, topic: bytes, listener: Listener) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._listener = listener
        self._closed = False
        self._pumping = False
        self._empty = 0
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Until cancelled, or the listener fails."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        live = context.socket(zmq.SUB)
        try:
            live.set_hwm(0)  # the index is faster than the engine; a bound here would only make gaps
            live.setsockopt(zmq.SUBSCRIBE, self._topic)
            monitor = live.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            live.connect(self._endpoint)
            await self._watch(live, monitor)
        finally:
            self._closed = True
            live.disable_monitor()
            context.destroy(linger=0)

    async def _watch(self, live: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(monitor.fileno(), self._read_monitor, monitor)
        self._listen(live)
        try:
            while True:
                self._wake(live)
                self._read_monitor(monitor)
                await asyncio.sleep(NUDGE)
                self._listener.check()
                if self._failure is not None:
                    raise self._failure
        finally:
            loop.remove_reader(live.fileno())
            loop.remove_reader(monitor.fileno())

    def _listen(self, live: zmq.Socket[bytes]) -> None:
        """Idle: the socket wakes us."""
        self._pumping = False
        asyncio.get_running_loop().add_reader(live.fileno(), self._wake, live)

    def _wake(self, live: zmq.Socket[bytes]) -> None:
        if not self._pumping and int(live.getsockopt(zmq.EVENTS)) & READABLE:
            self._pumping, self._empty = True, 0
            asyncio.get_running_loop().remove_reader(live.fileno())
            self._pump(live)

    def _pump(self, live: zmq.Socket[bytes]) -> None:
        """Busy: read at a steady pace until there is nothing to read for a while."""
        if self._closed:
            return
        try:
            count = self._read(live)
        except Exception as error:
            self._failure = error
            return
        self._empty = 0 if count else self._empty + 1
        if self._empty < EMPTY:
            asyncio.get_running_loop().call_later(0.0 if count == BURST else PACE, self._pump, live)
        else:
            self._listen(live)

    def _read(self, live: zmq.Socket[bytes]) -> int:
        count = 0
        while count < BURST and int(live.getsockopt(zmq.EVENTS)) & READABLE:  # asking is cheaper than an exception
            self._listener.take(_message(live))
            count += 1
        if count:
            self._listener.flush()
        return count

    def _read_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        while not monitor.closed and int(monitor.getsockopt(zmq.EVENTS)) & READABLE:
            frames = monitor.recv_multipart(zmq.NOBLOCK)
            if parse_monitor_message(frames)["event"] == zmq.EVENT_DISCONNECTED:
                self._listener.disconnected()
            else:
                asyncio.get_running_loop().call_later(JOINING, self._listener.connected)


def _message(live: zmq.Socket[bytes]) -> list[bytes]:
    """The next message's frames. `recv_multipart` asks the socket after each whether more follow; a frame knows."""
    frame = live.recv(zmq.NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = live.recv(zmq.NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames


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
