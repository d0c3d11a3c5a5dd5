"""The certificate that a router shows to clients, and its key (`tls_files.py`)."""

from __future__ import annotations

import ssl
from typing import Final

from plumage.settings.router_config import TlsConfig
from plumage_router.process.secret_file import SecretFile
from plumage_router.process.tls_files import TlsFiles, no_passphrase

__all__ = ["HTTP1", "HTTP2", "ServerCertificate"]

HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"


class ServerCertificate(TlsFiles):
    """protocol: that the port speaks, by its name in ALPN. Raises ConfigurationError if the files cannot be used at
    start."""

    expires: float

    def __init__(self, config: TlsConfig, protocol: str = HTTP1) -> None:
        self._config = config
        self._protocol = protocol
        chain = SecretFile(config.certificate_file, "the certificates of the port (PEM)")
        key = SecretFile(config.key_file, "the key of the port's certificate (PEM)")
        super().__init__((chain, key), config.certificate_file)

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols([self._protocol])
        context.load_cert_chain(self._config.certificate_file, self._config.key_file, password=no_passphrase)
        return context

    def _cannot(self) -> str:
        return f"{self._config.certificate_file} and {self._config.key_file} are not a certificate and its key"
