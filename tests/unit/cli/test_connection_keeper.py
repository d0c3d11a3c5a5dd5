"""The supervisor's keeper of connections, with real sockets and routers that a test plays."""

from __future__ import annotations

import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from plumage.handover import MAX_FDS, RECEIVE, Kind, Message, MessageReader, count_in, message, packed_count
from plumage_cli.errors import CliError
from plumage_cli.local.pool import connection_keeper
from plumage_cli.local.pool.connection_keeper import ConnectionKeeper
from plumage_router.http.written_bytes import written_bytes

REQUEST = b"POST /v1/completions HTTP/1.1\r\n\r\n"


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Router:
    """One router process: it takes connections once it is made. `opened`: all sockets of all routers."""

    opened: ClassVar[list[socket.socket]] = []

    def __init__(self, keeper: ConnectionKeeper, number: int = 0) -> None:
        self.keeper, self.number = keeper, number
        keeper.renew(number)
        self.socket = socket.socket(fileno=os.dup(keeper.child_descriptor(number)))
        self.opened.append(self.socket)
        self.socket.settimeout(20)
        self.reader = MessageReader()
        self.messages: list[Message] = []
        self.descriptors: list[int] = []
        self.known: int | None = None  # bytes of the connection that was taken last; None if it was new
        self.report(Kind.ACCEPT)

    def begin(self, number: int, sock: socket.socket, *parts: bytes) -> None:
        """A request arrives."""
        self.report(Kind.REQUEST_BEGINS, number, packed_count(written_bytes(sock.fileno())))
        for part in parts:
            self.report(Kind.RECEIVED, number, part)

    def report(self, kind: Kind, connection: int = 0, payload: bytes = b"") -> None:
        self.socket.sendall(message(kind, connection, payload))

    def take(self) -> tuple[int, socket.socket, bytes]:
        """The next connection: its number, its socket, and what an earlier router received."""
        number, size, received, sock = 0, -1, b"", None
        self.known = None
        while sock is None or len(received) < size:
            while not self.messages:
                data, descriptors, _, _ = socket.recv_fds(self.socket, RECEIVE, MAX_FDS)
                assert data, "the keeper closed"
                self.descriptors += descriptors
                self.messages += self.reader.feed(data)
            one = self.messages.pop(0)
            if one.kind is Kind.CONNECTION:
                self.known = count_in(one.payload)
                number, size = one.connection, self.known or 0
                sock = socket.socket(fileno=self.descriptors.pop(0))
                self.opened.append(sock)
            else:
                assert (one.kind, one.connection) == (Kind.BYTES, number)
                received += one.payload
        return number, sock, received

    def kill(self) -> None:
        self.socket.close()
        self.keeper.ended(self.number)


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def keeper(reports: list[str]) -> Iterator[ConnectionKeeper]:
    made = ConnectionKeeper(socket.create_server(("127.0.0.1", 0)), 100, reports.append, routers=2)
    yield made
    made.close()
    while Router.opened:
        Router.opened.pop().close()


@pytest.fixture
def client(keeper: ConnectionKeeper) -> Iterator[socket.socket]:
    assert keeper._listener is not None
    with socket.create_connection(keeper._listener.getsockname(), timeout=20) as made:
        yield made


def test_request_that_a_router_was_about_to_answer_goes_to_the_next(
    keeper: ConnectionKeeper, client: socket.socket
) -> None:
    """A router reports that it answers, and may be killed before it writes a byte."""
    first = Router(keeper)
    number, sock, received = first.take()
    assert received == b""
    first.begin(number, sock, REQUEST)
    first.report(Kind.ANSWER_BEGINS, number)
    sock.close()
    first.kill()
    again, sock, received = Router(keeper).take()
    assert (again, received) == (number, REQUEST)
    sock.sendall(b"answer")
    assert client.recv(100) == b"answer"
    sock.close()


@pytest.mark.parametrize("read", [True, False])
def test_request_with_a_byte_of_its_answer_is_cut(
    keeper: ConnectionKeeper, client: socket.socket, *, read: bool
) -> None:
    first = Router(keeper)
    number, sock, _ = first.take()
    first.begin(number, sock, REQUEST)
    first.report(Kind.ANSWER_BEGINS, number)
    sock.sendall(b"H")
    sock.close()
    if read:
        assert client.recv(100) == b"H"
    first.kill()
    Router(keeper)
    assert client.recv(100) == (b"" if read else b"H")
    until(lambda: keeper.kept == 0)


def test_answered_connection_can_pass_on_its_next_request(keeper: ConnectionKeeper, client: socket.socket) -> None:
    first = Router(keeper)
    number, sock, _ = first.take()
    for _ in range(2):
        first.begin(number, sock, REQUEST)
        first.report(Kind.ANSWER_BEGINS, number)
        sock.sendall(b"whole answer")
        assert client.recv(100) == b"whole answer"
        first.report(Kind.ANSWERED, number)
    first.begin(number, sock, REQUEST[:10], REQUEST[10:])
    first.report(Kind.ANSWER_BEGINS, number)
    sock.close()
    first.kill()
    _, sock, received = Router(keeper).take()
    assert received == REQUEST
    sock.close()


def test_next_router_knows_whether_a_connection_is_new(keeper: ConnectionKeeper, client: socket.socket) -> None:
    first = Router(keeper)
    number, sock, _ = first.take()
    assert first.known is None
    first.begin(number, sock, REQUEST)
    first.report(Kind.ANSWER_BEGINS, number)
    first.report(Kind.ANSWERED, number)
    sock.close()
    first.kill()
    second = Router(keeper)
    _, sock, _ = second.take()
    assert second.known == 0
    sock.close()


def test_returned_connection_goes_to_another_router(keeper: ConnectionKeeper, client: socket.socket) -> None:
    """A router that has no descriptor for it takes none until it says so."""
    first = Router(keeper)
    number, sock, _ = first.take()
    first.begin(number, sock, REQUEST)
    sock.close()
    first.kill()
    poor = Router(keeper)
    again, sock, received = poor.take()
    sock.close()
    poor.report(Kind.RETURNED, again)
    other = Router(keeper, 1)
    assert (again, received) == (number, REQUEST)
    taken, sock, received = other.take()
    assert (taken, received) == (number, REQUEST)
    sock.close()
    other.kill()
    poor.report(Kind.ACCEPT)
    taken, sock, received = poor.take()
    assert (taken, received) == (number, REQUEST)
    sock.close()


def test_some_descriptors_stay_free_for_the_start_of_a_router(
    keeper: ConnectionKeeper, client: socket.socket, reports: list[str]
) -> None:
    keeper._most_files = 0  # so the first connection is the last one
    router = Router(keeper)
    number, sock, _ = router.take()
    until(lambda: keeper._full)
    assert reports == ["1 connections are open, and new ones wait: raise the limit of open files (ulimit -n)"]
    assert keeper._listener is not None
    with socket.create_connection(keeper._listener.getsockname(), timeout=20):
        assert keeper.kept == 1
        router.report(Kind.DROP, number)
        second, waited, _ = router.take()
        assert {number, second} == {1, 2}
        for one in (sock, waited):
            one.close()
    assert len(reports) == 1, "it is said once a minute"


def test_bytes_of_begun_answers_make_room_for_others(
    keeper: ConnectionKeeper, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_keeper, "MOST_BYTES", 100)
    router = Router(keeper)
    number, sock, _ = router.take()
    router.begin(number, sock, b"x" * 90)
    router.report(Kind.ANSWER_BEGINS, number)
    sock.sendall(b"H")
    assert keeper._listener is not None
    with socket.create_connection(keeper._listener.getsockname(), timeout=20):
        other, second, _ = router.take()
        router.begin(other, second, b"y" * 90)
        until(lambda: keeper._connections[other].received)
        assert keeper._connections[number].received == []
        router.report(Kind.RECEIVED, other, b"z" * 90)
        until(lambda: other not in keeper._connections)
        second.close()
    sock.close()


def test_messages_need_no_large_objects_which_would_fragment_the_heap(
    keeper: ConnectionKeeper, client: socket.socket
) -> None:
    router = Router(keeper)
    number, sock, _ = router.take()
    router.begin(number, sock, b"x")
    until(lambda: keeper._connections[number].received)
    tracemalloc.start()
    try:
        for _ in range(20):
            router.report(Kind.RECEIVED, number, b"x" * 900)
        until(lambda: len(keeper._connections[number].received) == 21)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    sock.close()


def test_each_connection_goes_to_the_router_with_the_fewest(keeper: ConnectionKeeper) -> None:
    routers = [Router(keeper, number) for number in range(2)]
    until(lambda: all(one.accepts for one in keeper._routers.values()) and len(keeper._routers) == 2)
    assert keeper._listener is not None
    clients = [socket.create_connection(keeper._listener.getsockname(), timeout=20) for _ in range(6)]
    taken = [router.take() for router in routers for _ in range(3)]
    routers[0].report(Kind.DROP, taken[0][0])
    until(lambda: keeper.kept == 5)
    clients.append(socket.create_connection(keeper._listener.getsockname(), timeout=20))
    taken.append(routers[0].take())
    for sock in (*clients, *(sock for _, sock, _ in taken)):
        sock.close()


def test_router_that_sends_nonsense_loses_its_socket_and_nobody_else(
    keeper: ConnectionKeeper, client: socket.socket
) -> None:
    bad = Router(keeper, 1)
    number, sock, _ = bad.take()
    sock.close()
    bad.socket.sendall(b"\xff" * 64)
    assert bad.socket.recv(100) == b"", "its process ends then"
    bad.kill()
    again, sock, _ = Router(keeper, 0).take()
    assert again == number
    sock.close()


def test_no_router_starts_without_the_keepers_thread(reports: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(keeper: ConnectionKeeper) -> None:
        raise RuntimeError("a bug")

    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(ConnectionKeeper, "_turn", fail)
    keeper = ConnectionKeeper(socket.create_server(("127.0.0.1", 0)), 100, reports.append)
    until(lambda: not keeper._thread.is_alive())
    assert len(failed) == 1
    with pytest.raises(CliError, match="the thread that accepts connections has ended"):
        keeper.renew()
    keeper.close()
