"""TLS to the engines of a pool: which certificates a router trusts, and its own one (`tls_files.py`).

Engines are reached by their addresses, which no certificate names. So the router asks for the DNS name of the pool's
Service. A connection belongs to the context that it began with, so a change of the files ends its reuse.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final, Protocol

from plumage.prometheus.exposition import counter, gauge
from plumage.settings.router_config import EngineTlsConfig
from plumage_router.process.secret_file import SecretFile
from plumage_router.process.tls_files import TlsFiles, no_passphrase

__all__ = ["UNVERIFIED", "EngineTls", "UpstreamTls", "engine_tls_lines"]

_PROTOCOLS: Final = ["http/1.1"]


class UpstreamTls(Protocol):
    """`context`: for the next handshake. `server_name`: that the certificate must have; None for any."""

    @property
    def context(self) -> ssl.SSLContext: ...

    @property
    def server_name(self) -> str | None: ...


class EngineTls(TlsFiles):
    """Raises ConfigurationError if the files cannot be used at start."""

    def __init__(self, config: EngineTlsConfig) -> None:
        self._config = config
        self.server_name = config.server_name
        files = [SecretFile(config.ca_file, "the certificates that engines are verified by (PEM)")]
        if config.certificate_file is not None and config.key_file is not None:
            files.append(SecretFile(config.certificate_file, "the certificate for engines (PEM)"))
            files.append(SecretFile(config.key_file, "the key of the certificate for engines (PEM)"))
        super().__init__(files, config.certificate_file)

    def _make(self) -> ssl.SSLContext:
        context = _new_context()
        # The authority may be an intermediate one, without its root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(self._config.ca_file)
        if self._config.certificate_file is not None:
            context.load_cert_chain(self._config.certificate_file, self._config.key_file, password=no_passphrase)
        return context

    def _cannot(self) -> str:
        config = self._config
        if config.certificate_file is None:
            return f"{config.ca_file} has no certificates to trust"
        return f"{config.ca_file}, {config.certificate_file} and {config.key_file} cannot be used together"


def _new_context() -> ssl.SSLContext:
    """Makes a context for TLS 1.3 only. Its session tickets show that the engine accepted our certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(_PROTOCOLS)
    return context


class _Unverified:
    """For a pool without TLS in its settings, whose engines may still have it: a rollout is under way. Such a pool
    would also take engines over plain HTTP, so a connection without verification is no less secure."""

    def __init__(self) -> None:
        self.server_name = None
        self.context = _new_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE


UNVERIFIED: Final[UpstreamTls] = _Unverified()


def engine_tls_lines(prefix: str, tls: EngineTls | None) -> Iterator[str]:
    """The metrics of a pool whose engines are verified; none of another one."""
    if tls is None:
        return
    text = "Changes of the certificates for connections to engines that could not be used."
    yield from counter(prefix + "engine_tls_reload_failures", text, tls.failures)
    if tls.expires is not None:
        text = "When the certificate that routers show to engines expires, in seconds since 1970."
        yield from gauge(prefix + "client_certificate_expiry_timestamp_seconds", text, tls.expires)
