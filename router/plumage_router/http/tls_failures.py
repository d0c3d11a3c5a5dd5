"""Why TLS to an engine failed. It is called after a failure only."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from plumage_router.http.errors import Failure

__all__ = ["engine_refused_us", "tls_failure"]

# OpenSSL's codes of a verification: include/openssl/x509_vfy.h
_BY_CODE: Final = {
    9: Failure.CERTIFICATE_EXPIRED,  # not valid yet
    10: Failure.CERTIFICATE_EXPIRED,
    62: Failure.CERTIFICATE_NAME,  # another host name
    64: Failure.CERTIFICATE_NAME,  # another address
}


def tls_failure(error: ssl.SSLError) -> Failure:
    """Returns the failure of a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_CODE.get(error.verify_code, Failure.CERTIFICATE_UNTRUSTED)
    return Failure.TLS_FAILED


def engine_refused_us(transport: asyncio.BaseTransport) -> bool:
    """Whether an engine closed a connection without a byte because it did not accept the router's certificate, or
    because there was none.

    In TLS 1.3 a server checks the client's certificate after the client's handshake has ended. If it accepts it, it
    sends session tickets before anything else. An engine that dies within the same turn of its loop looks as if it had
    refused.
    """
    secure: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if secure is None:
        return False
    session = secure.session
    return session is None or not session.has_ticket
