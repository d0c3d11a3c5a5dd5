"""TLS of the external metrics server: which client may connect, and how long the server's certificate is valid.

The API server authenticates and authorizes a request before it forwards it. So the only check left here is that the
client is the API server. The ConfigMap `kube-system/extension-apiserver-authentication` names the authority that signs
its client certificate, and the common names that the certificate may have.

An expired server certificate causes no error here: the listener goes on, and the API server refuses it. Then
HorizontalPodAutoscalers get no metric and keep their size. So the log warns before the certificate expires.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography import x509

from plumage.errors import ConfigurationError

__all__ = [
    "CONFIG_PATH",
    "SOON",
    "CertificateState",
    "FrontProxy",
    "describe_certificate",
    "expiry",
    "read_front_proxy",
    "state_of",
    "tls_context",
]

CONFIG_PATH: Final = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """authority: PEM. names: allowed common names of the client certificate; empty allows any."""

    authority: str
    names: frozenset[str] = frozenset()

    def accepts(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client's certificate, whose signature TLS has verified, is the API server's."""
        if certificate is None:
            return False
        subject = (pair for part in certificate.get("subject") or () for pair in part)
        return not self.names or any(name == "commonName" and value in self.names for name, value in subject)


class _Api(Protocol):
    async def request(self, method: str, path: str) -> dict[str, Any]: ...


async def read_front_proxy(api: _Api) -> FrontProxy:
    """Raises ConfigurationError where the API server forwards no requests."""
    data = (await api.request("GET", CONFIG_PATH)).get("data") or {}
    authority = data.get("requestheader-client-ca-file")
    if not authority:
        raise ConfigurationError(
            "the API server has no aggregation layer (no requestheader-client-ca-file in "
            "kube-system/extension-apiserver-authentication): external metrics can't be served"
        )
    try:
        names = frozenset(map(str, json.loads(data.get("requestheader-allowed-names") or "[]")))
    except (ValueError, TypeError) as error:
        raise ConfigurationError("requestheader-allowed-names is not a list of names") from error
    return FrontProxy(str(authority), names)


def tls_context(proxy: FrontProxy, folder: Path) -> ssl.SSLContext:
    """A server context with the certificate in `folder` (tls.crt, tls.key). Clients need a certificate of `proxy`'s
    authority.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"no certificate to serve external metrics with in {folder}: {error}") from error
    try:
        context.load_verify_locations(cadata=proxy.authority)
    except ssl.SSLError as error:
        raise ConfigurationError(f"requestheader-client-ca-file can't be read: {error}") from error
    return context


SOON: Final = 7 * 86_400.0  # seconds; as in the chart's alert PlumageExternalMetricsCertificateExpires

_RENEW: Final = "renew externalMetrics.tls.existingSecret, or delete the chart's own Secret and helm upgrade"


class CertificateState(Enum):
    """The state of a certificate."""

    GOOD = "good"
    SOON = "soon"
    EXPIRED = "expired"


def expiry(chain: bytes) -> float | None:
    """When the first of a PEM file's certificates expires, in seconds since 1970; None where they can't be read."""
    try:
        return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(chain))
    except ValueError:
        return None


def state_of(expires: float, now: float) -> CertificateState:
    """The state at `now`. Both times are in seconds since 1970."""
    if expires <= now:
        return CertificateState.EXPIRED
    return CertificateState.SOON if expires - now < SOON else CertificateState.GOOD


def describe_certificate(state: CertificateState, expires: float) -> str:
    """A line for the log."""
    date = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    match state:
        case CertificateState.GOOD:
            return f"the certificate is valid until {date}"
        case CertificateState.SOON:
            return f"the certificate expires soon, at {date}: {_RENEW}"
        case CertificateState.EXPIRED:
            return f"the certificate has expired, at {date}, and the API server refuses it: {_RENEW}"
