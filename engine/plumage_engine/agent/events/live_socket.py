"""Reads the engine's PUB socket cheaply: the listener gets frames in bursts, and learns of new and lost connections.

It does not use zmq.asyncio, whose futures cost more than the work on a batch. While idle, the socket wakes the event
loop. While frames arrive, it is read at a steady interval, because a wake-up for each message costs more than reading
it. So the changes of several engine steps are written to the directory at once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

__all__ = ["Listener", "LiveSocket"]

BURST = 64  # messages read before the event loop gets its turn
JOINING = 0.1  # seconds from a connection until the engine knows our subscription
PACE = 0.025  # seconds between reads while messages flow: an event waits half of it on average
EMPTY = 5  # reads in a row with nothing to read until the socket wakes us again
READABLE = int(zmq.POLLIN)  # as an enum it would cost more to compare than to read
NUDGE = 1.0  # seconds; ZMQ's descriptor signals edges, a lost one must not stop the stream


class Listener(Protocol):
    """Called from the event loop, one call at a time. What it raises ends `LiveSocket.run`."""

    def take(self, frames: list[bytes]) -> None:
        """One message."""
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
