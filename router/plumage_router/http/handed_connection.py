"""A client's connection that the supervisor accepted and keeps a copy of (`plumage.handover`).

It reports what the supervisor needs to pass the connection to the next router, should this one end without an answer.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from plumage.handover import Kind, packed_count
from plumage_router.http.downstream import DownstreamConnection, DownstreamHost
from plumage_router.http.written_bytes import written_bytes

__all__ = ["HandedConnection", "Supervisor"]

_LARGEST_REPORT: Final = 1 << 18  # bytes of the client in one message


class Supervisor(Protocol):
    """The other side."""

    def report(self, kind: Kind, connection: int, payload: bytes = b"") -> None: ...


class HandedConnection(DownstreamConnection):
    """number: of the connection, given by the supervisor. received: what an earlier router received of its request;
    None if the connection is new."""

    __slots__ = ("_answering", "_begun", "_copied", "_ended", "_number", "_received", "_supervisor")

    def __init__(
        self,
        host: DownstreamHost,
        loop: asyncio.AbstractEventLoop,
        supervisor: Supervisor,
        number: int,
        received: bytes | None,
    ) -> None:
        super().__init__(host, loop)
        self._supervisor = supervisor
        self._number = number
        self._received = received
        self._copied = True  # the supervisor has a copy
        self._begun = bool(received)  # a request has begun
        self._answering = False
        self._ended = False  # the answer has ended; this is not reported yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        received, self._received = self._received, None
        if received:  # at once: what the socket has comes after it
            super().data_received(received)
        elif received is not None:  # between two requests
            self.deadline = self._host.tick + self._timeouts.keep_alive

    def data_received(self, data: bytes) -> None:
        if self._ended:
            self._answer_ended()
        if self._answering:
            self._drop()  # the supervisor could not know which bytes belong to which request
        elif self._copied:
            if not self._begun:
                self._begun = True
                descriptor = self.transport.get_extra_info("socket").fileno()
                self._report(Kind.REQUEST_BEGINS, packed_count(written_bytes(descriptor)))
            for start in range(0, len(data), _LARGEST_REPORT):
                self._report(Kind.RECEIVED, data[start : start + _LARGEST_REPORT])
        super().data_received(data)

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        self._drop()

    def answer_begins(self) -> None:
        if self._copied and not self._answering:
            self._answering = True
            self._report(Kind.ANSWER_BEGINS)

    def done(self, *, keep_alive: bool) -> None:
        super().done(keep_alive=keep_alive)
        if not keep_alive or not self._copied:
            return
        if self._waiting or self._parser.request is not None or self._refusal is not None:
            self._drop()
        else:
            self._ended = True
            self._loop.call_soon(self._answer_ended)  # uvloop writes at the end of a turn

    def _answer_ended(self) -> None:
        """Reports it, if the system has the whole answer. What only this process has is lost if it is killed, so such
        a connection must end with it."""
        if not self._ended or not self._copied:
            return
        self._ended = False
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self._drop()
        else:
            self._answering = self._begun = False
            self._report(Kind.ANSWERED)

    def _report(self, kind: Kind, payload: bytes = b"") -> None:
        self._supervisor.report(kind, self._number, payload)

    def _drop(self) -> None:
        if self._copied:
            self._copied = False
            self._report(Kind.DROP)
