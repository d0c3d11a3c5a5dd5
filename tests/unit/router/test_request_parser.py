"""Requests are the same however their bytes arrive, and a body behind its head stays in one piece."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.settings.router_config import LimitsConfig
from plumage_router.http.body_memory import BodyMemory, BodyReservation
from plumage_router.http.errors import RequestError
from plumage_router.http.request import Request
from plumage_router.http.request_parser import SLICE, RequestParser


class Port:
    """Admits every request, and keeps what the parser delivers. `most`: complete requests after which it is full."""

    peer = "10.0.0.1"

    def __init__(self, most: int = 1000) -> None:
        self.limits = LimitsConfig()
        self.body_memory = BodyMemory(64 << 20)
        self.requests: list[Request] = []
        self.refused: list[RequestError] = []
        self.paused = False
        self.most = most
        self.parser = RequestParser(self, self)

    def admit(self, request: Request) -> RequestError | None:
        request.reservation = BodyReservation(self.peer)
        return None

    def request_began(self) -> None:
        pass

    def request_admitted(self, request: Request) -> None:
        pass

    def request_complete(self, request: Request) -> None:
        self.requests.append(request)

    def refuse(self, error: RequestError) -> None:
        self.refused.append(error)
        self.parser.stop()

    def is_full(self) -> bool:
        return len(self.requests) >= self.most

    def pause_reading(self) -> None:
        self.paused = True

    def seen(self) -> list[Any]:
        return [
            (one.method, one.target, one.headers, one.http10, one.keep_alive, one.body.whole()) for one in self.requests
        ]


def request(size: int, *lines: bytes, chunked: bool = False) -> bytes:
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % size
    head = b"".join(line + b"\r\n" for line in (b"POST /v1/completions HTTP/1.1", b"host: a", framing, *lines))
    body = bytes(number % 251 for number in range(size))
    return head + b"\r\n" + (b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if chunked else body)


SENT = (
    request(9), request(3 * SLICE), request(3 * SLICE, chunked=True),
    request(2 * SLICE, b"connection: upgrade", b"upgrade: h2c"), b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(SENT), min_size=1, max_size=4), st.lists(st.integers(0, 200_000), max_size=4))
def test_requests_do_not_depend_on_how_they_arrive(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    whole, parts = Port(), Port()
    whole.parser.feed(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        parts.parser.feed(data[start:end])
    assert len(whole.requests) == len(sent)
    assert whole.seen() == parts.seen()


@pytest.mark.parametrize("size", [SLICE, 70_000, 200_000])
def test_body_behind_its_head_is_one_piece(size: int) -> None:
    port = Port()
    port.parser.feed(request(size))
    assert len(port.requests[0].body.parts) == 1


def test_full_port_keeps_the_rest() -> None:
    port, sent = Port(most=2), request(SLICE)
    port.parser.feed(sent * 3)
    assert len(port.requests) == 2
    assert port.paused
    rest, port.most = port.parser.unparsed, 9
    port.parser.feed(rest)
    assert port.seen()[2] == port.seen()[0]


@pytest.mark.parametrize("name", [b"connection", b"proxy-connection"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("value", [b"keep-alive", b"close"])
def test_version_counts_whatever_the_client_asks(name: bytes, version: bytes, value: bytes) -> None:
    port = Port()
    port.parser.feed(request(3, name + b": " + value).replace(b"HTTP/1.1", b"HTTP/" + version))
    (one,) = port.requests
    assert one.http10 == (version == b"1.0")
    assert one.keep_alive == (version == b"1.1" and value == b"keep-alive")


def test_version_without_a_connection_header() -> None:
    for version in (b"1.0", b"1.1"):
        port = Port()
        port.parser.feed(request(3).replace(b"HTTP/1.1", b"HTTP/" + version))
        assert [(one.http10, one.keep_alive) for one in port.requests] == [(version == b"1.0", version == b"1.1")]
