"""Who may ask: the API server alone, by the certificate that it shows when it passes a request on.

The API server has authenticated and authorised a request before it passes it on, so nothing is left to be checked here
but that it is the API server that asks. By which authority its certificate is signed, and which names it may have,
stands in the ConfigMap `kube-system/extension-apiserver-authentication`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from plumage.errors import ConfigurationError

__all__ = ["CONFIG_PATH", "FrontProxy", "read_front_proxy", "tls_context"]

CONFIG_PATH: Final = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """authority: PEM. names: common names, one of which its certificate must have; none: any will do."""

    authority: str
    names: frozenset[str] = frozenset()

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a peer's certificate, whose signature TLS has checked, is the API server's."""
        if certificate is None:
            return False
        subject = (pair for part in certificate.get("subject") or () for pair in part)
        return not self.names or any(name == "commonName" and value in self.names for name, value in subject)


class _Api(Protocol):
    async def request(self, method: str, path: str) -> dict[str, Any]: ...


async def read_front_proxy(api: _Api) -> FrontProxy:
    """ConfigurationError where the API server passes no request on."""
    data = (await api.request("GET", CONFIG_PATH)).get("data") or {}
    authority = data.get("requestheader-client-ca-file")
    if not authority:
        raise ConfigurationError(
            "the API server is set up without aggregation (no requestheader-client-ca-file in "
            "kube-system/extension-apiserver-authentication): external metrics can't be served"
        )
    try:
        names = frozenset(map(str, json.loads(data.get("requestheader-allowed-names") or "[]")))
    except (ValueError, TypeError) as error:
        raise ConfigurationError("requestheader-allowed-names is no list of names") from error
    return FrontProxy(str(authority), names)


def tls_context(proxy: FrontProxy, folder: Path) -> ssl.SSLContext:
    """Of a server with the certificate in `folder` (tls.crt, tls.key); who calls needs one of `proxy`'s authority."""
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
