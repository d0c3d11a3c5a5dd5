"""What a request's head must not say: rules that need nothing but the head, checked before any byte of the body."""

from __future__ import annotations

from plumage_router.config import LimitsConfig
from plumage_router.errors import RequestError, bad_request
from plumage_router.request import Request
from plumage_router.wire import is_coded

__all__ = ["SINGLE", "too_large", "wrong_head"]

SINGLE = frozenset((b"host", b"authorization", b"content-type", b"content-length", b"x-request-id", b"expect"))
"""Headers that may stand only once."""


def wrong_head(request: Request, limits: LimitsConfig) -> RequestError | None:
    """The first rule that the head breaks; None where it keeps all."""
    headers = request.headers
    length = headers.get(b"content-length")
    codings = headers.get(b"transfer-encoding")
    if length is not None and int(length) > limits.max_body_bytes:
        return too_large(limits)
    if not request.http10 and b"host" not in headers:
        return bad_request("The Host header is missing.", code="malformed_http")
    if codings is not None and request.http10:  # RFC 9112, section 6.1: its framing must be taken for faulty
        return bad_request("HTTP/1.0 knows no Transfer-Encoding.", code="malformed_http")
    if codings is not None and is_coded(codings):
        return RequestError(501, "Only chunked is known as a transfer coding.", code="transfer_encoding")
    if b"expect" in headers and headers[b"expect"].lower() != b"100-continue":
        return RequestError(417, "Only 100-continue can be expected.", code="expectation")
    return None


def too_large(limits: LimitsConfig) -> RequestError:
    """The body is larger than one may be."""
    return RequestError(413, f"The body is larger than {limits.max_body_bytes} bytes.", code="body_too_large")
