"""One HTTP request as the parser delivers it, and the protocol of what answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from plumage_router.http.auth import Tenant
from plumage_router.http.body_memory import BodyBuffer, BodyReservation

__all__ = ["SINGLE_HEADERS", "Handler", "Request"]

SINGLE_HEADERS: Final = frozenset(
    (b"host", b"authorization", b"x-api-key", b"content-type", b"content-length", b"x-request-id", b"expect")
)
"""Headers that a request may have only once."""


class Request:
    """A whole request.

    headers: by lower-case name. Repeated list headers are joined; a repeated header of `SINGLE_HEADERS` is refused.
    id: the client's own, or a random one. Set once the head is complete.
    size: body bytes received; `body` has none of a body that no handler reads.
    reservation: memory for the body; None when no handler reads the body, as for a stored response.
    is_completion: an engine answers it. Set once the head is complete.
    tenant: who sent it. With API keys it is set once the head is complete.
    sender: whose share of memory and time it uses: its tenant's name, or the client's address without API keys.
    parsed: the body's JSON object, or its form, set where it was parsed to find the request's pool.
    copy: called with the request, its id and its trace once its first replica has it, to send a copy to another pool.
    """

    __slots__ = (
        "body", "copy", "headers", "http10", "id", "is_completion", "keep_alive", "method", "parsed", "reservation",
        "sender", "size", "target", "tenant",
    )  # fmt: skip

    def __init__(self, sender: str = "") -> None:
        self.sender = sender
        self.id = ""
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = BodyBuffer()
        self.size = 0
        self.reservation: BodyReservation | None = None
        self.tenant: Tenant | None = None
        self.parsed: Any = None
        self.copy: Callable[[Request, str, Any], None] | None = None
        self.is_completion = False
        self.keep_alive = False
        self.http10 = False

    @property
    def has_body(self) -> bool:
        """Whether the headers announce a body."""
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    def head(self, *, without: bytes) -> bytes:
        """Returns the bytes before the body, without one header."""
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers.items() if header[0] != without)
        return b"%b %b HTTP/1.%d\r\n%b\r\n" % (self.method, self.target, not self.http10, lines)


class Handler(Protocol):
    """Answers one request. Ends with `DownstreamConnection.done`, exactly once, unless it was aborted."""

    @property
    def answering(self) -> bool:
        """Whether a part of the answer was written."""
        ...

    def start(self) -> None: ...

    def pause(self) -> None:
        """Stops producing: the client reads too slowly."""
        ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        """Drops everything: the client is gone."""
        ...
