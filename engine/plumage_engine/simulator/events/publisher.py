"""Publishes KV events over ZeroMQ as vLLM does: a PUB socket, and a ROUTER socket that replays what was missed.

A subscriber that is too slow loses messages at the high-water mark and sees a gap in the sequence numbers. It then asks
the replay socket with [b"", start]. The answer is [b"", number, payload] for every stored batch from `start` on, and
ends with number −1. Batches older than the last `kept` are deleted; a snapshot replaces them.

The replay socket has a thread of its own, so that a long replay delays no step.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from itertools import count

import zmq

from plumage.errors import ConfigurationError
from plumage_engine.kv_events import END_OF_REPLAY, EventBatch, encode_batch, encode_sequence

__all__ = ["EventPublisher"]

_LOG = logging.getLogger(__name__)
_HIGH_WATER = 100_000  # messages a slow subscriber may lag behind; vLLM's default
_WAKE = "inproc://plumage-events-stop"


class EventPublisher:
    """Binds both sockets at once; ConfigurationError if it can't. `next_sequence`: the number of the next batch."""

    def __init__(self, endpoint: str | None, replay_endpoint: str | None, *, topic: str = "", kept: int) -> None:
        self.next_sequence = 0
        self._topic = topic.encode()
        self._numbers = count()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._stop: zmq.Socket[bytes] | None = None
        self._replay: threading.Thread | None = None
        try:
            if endpoint is not None:
                self._pub = self._bind(zmq.PUB, endpoint, _HIGH_WATER)
            if replay_endpoint is not None:
                self._start_replay(replay_endpoint)
        except ConfigurationError:
            self.close()
            raise

    def publish(self, batch: EventBatch) -> None:
        """Send one batch; never blocks."""
        payload, number = encode_batch(batch), next(self._numbers)
        with self._lock:
            self._kept.append((number, payload))
            self.next_sequence = number + 1
        if self._pub is not None:
            self._pub.send_multipart((self._topic, encode_sequence(number), payload))

    def close(self) -> None:
        """Stop the thread, and close the sockets after a moment for unsent messages."""
        if self._replay is not None and self._stop is not None:
            self._stop.send(b"")
            self._replay.join(timeout=5)
            self._stop.close(0)
        if self._pub is not None:
            self._pub.close(linger=200)
        self._context.term()

    def _bind(self, kind: int, endpoint: str, high_water: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water)
        mask = os.umask(0o177)  # the socket's file is its owner's alone: events carry prompts
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigurationError(f"can't publish events at {endpoint}: {error}; does its folder exist?") from error
        finally:
            os.umask(mask)
        return socket

    def _start_replay(self, endpoint: str) -> None:
        router = self._bind(zmq.ROUTER, endpoint, 0)  # no mark: a replay is bounded by what is kept
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind(_WAKE)
        self._replay = threading.Thread(target=self._serve, args=(router,), daemon=True, name="kv-event-replay")
        self._replay.start()

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        wake = self._context.socket(zmq.PAIR)
        wake.connect(_WAKE)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(wake, zmq.POLLIN)
        while wake not in dict(poller.poll()):
            self._answer(router)
        router.close(linger=200)
        wake.close(0)

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        frames = router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            _LOG.warning(
                "ignored a replay request of %d frames; it must be [b'', 8 bytes of sequence number]", len(frames)
            )
            return
        client, start = frames[0], int.from_bytes(frames[2], "big")
        with self._lock:
            batches = [entry for entry in self._kept if entry[0] >= start]
        for number, payload in batches:
            router.send_multipart((client, b"", encode_sequence(number), payload))
        router.send_multipart((client, b"", END_OF_REPLAY, b""))
