"""A whole request, who answers it, and what a client's connection needs of the process around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plumage_router.config import LimitsConfig, TimeoutsConfig
from plumage_router.errors import RequestError
from plumage_router.room import Held, Room

if TYPE_CHECKING:
    from plumage_router.auth import Tenant
    from plumage_router.client import ClientConnection

__all__ = ["Handler", "Host", "Request"]


class Request:
    """A whole request. `headers`: lower-case names; repeated list headers are joined, repeated others refused.
    `size`: body bytes received. `held`: those that are kept; None where nobody reads the body. `tenant`: who sent it,
    known once the headers are complete where keys are used."""

    __slots__ = ("body", "headers", "held", "http10", "keep_alive", "method", "size", "target", "tenant")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.size = 0
        self.held: Held | None = None
        self.tenant: Tenant | None = None
        self.keep_alive = False
        self.http10 = False

    @property
    def has_body(self) -> bool:
        """By its headers."""
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    def head(self, *, without: bytes) -> bytes:
        """Its bytes up to the body, less one header."""
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers.items() if header[0] != without)
        return b"%b %b HTTP/1.%d\r\n%b\r\n" % (self.method, self.target, not self.http10, lines)


class Handler(Protocol):
    """Who answers one request. It ends with `ClientConnection.done`, exactly once, unless it was aborted."""

    @property
    def answering(self) -> bool:
        """Was a part of the answer written?"""
        ...

    def start(self) -> None: ...

    def pause(self) -> None:
        """The client reads too slowly: stop producing."""
        ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        """The client is gone: drop everything."""
        ...


class Host(Protocol):
    """What a connection needs of the process around it. `tick`: a coarse clock, seconds, good enough for deadlines."""

    limits: LimitsConfig
    timeouts: TimeoutsConfig
    tick: float
    date: bytes
    room: Room

    def opened(self, connection: ClientConnection) -> RequestError | None:
        """Counts the connection in; an error instead when there are too many."""
        ...

    def closed(self, connection: ClientConnection) -> None: ...

    def admit(self, request: Request) -> RequestError | None:
        """Asked once the headers are complete, before any byte of the body is kept: an error where the request needs
        a key and has none. Sets `tenant`, and `held` where the body will be read."""
        ...

    def handler(self, request: Request, connection: ClientConnection) -> Handler: ...

    def refused(self, error: RequestError) -> bytes:
        """Told of each request refused before it had a handler; the header lines of the answer."""
        ...
