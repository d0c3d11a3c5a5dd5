"""One HTTP request as the parser delivers it, and the rules that its head must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plumage_router.config import LimitsConfig
from plumage_router.http.auth import Tenant
from plumage_router.http.body_memory import BodyReservation
from plumage_router.http.errors import RequestError, bad_request
from plumage_router.http.wire import is_coded

__all__ = ["SINGLE_HEADERS", "Request", "body_too_large", "check_head"]

SINGLE_HEADERS: Final = frozenset(
    (b"host", b"authorization", b"content-type", b"content-length", b"x-request-id", b"expect")
)
"""Headers that a request may have only once."""


class Request:
    """A whole request.

    headers: by lower-case name. Repeated list headers are joined; a repeated header of `SINGLE_HEADERS` is refused.
    size: body bytes received.
    reservation: memory for the body; None when no handler reads the body.
    tenant: who sent it. With API keys it is set once the head is complete.
    parsed: the body's JSON object, set where it was parsed to find the request's pool.
    """

    __slots__ = (
        "body", "headers", "http10", "keep_alive", "method", "parsed", "reservation", "size", "target", "tenant",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.size = 0
        self.reservation: BodyReservation | None = None
        self.tenant: Tenant | None = None
        self.parsed: Mapping[str, Any] | None = None
        self.keep_alive = False
        self.http10 = False

    @property
    def has_body(self) -> bool:
        """Whether the headers announce a body."""
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    def head(self, *, without: bytes) -> bytes:
        """The bytes before the body, without one header."""
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers.items() if header[0] != without)
        return b"%b %b HTTP/1.%d\r\n%b\r\n" % (self.method, self.target, not self.http10, lines)


def check_head(request: Request, limits: LimitsConfig) -> RequestError | None:
    """Checks a complete head before any byte of the body. Returns the first violation, None without one."""
    headers = request.headers
    length = headers.get(b"content-length")
    codings = headers.get(b"transfer-encoding")
    if length is not None and int(length) > limits.max_body_bytes:
        return body_too_large(limits)
    if not request.http10 and b"host" not in headers:
        return bad_request("The Host header is missing.", code="malformed_http")
    if codings is not None and request.http10:  # RFC 9112, section 6.1: the framing must be treated as faulty
        return bad_request("HTTP/1.0 has no Transfer-Encoding.", code="malformed_http")
    if codings is not None and is_coded(codings):
        return RequestError(501, "The only supported transfer coding is chunked.", code="transfer_encoding")
    if b"expect" in headers and headers[b"expect"].lower() != b"100-continue":
        return RequestError(417, "The only supported expectation is 100-continue.", code="expectation")
    return None


def body_too_large(limits: LimitsConfig) -> RequestError:
    return RequestError(413, f"The body is larger than {limits.max_body_bytes} bytes.", code="body_too_large")
