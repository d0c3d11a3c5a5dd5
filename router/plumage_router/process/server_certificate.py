"""The certificate that a router shows to clients, and its key: two PEM files, read again while the router runs.

A pair is used completely or not at all. A pair that does not match, or that cannot be parsed, changes nothing: the
previous one stays in force. Connections keep what they began with, and new handshakes get the new pair. A key with a
passphrase is refused, since nobody is there to type it.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from typing import Final

from plumage.errors import ConfigurationError
from plumage.settings.router_config import TlsConfig
from plumage_router.clock import wall
from plumage_router.process.secret_file import SecretFile

__all__ = ["ServerCertificate"]

log = logging.getLogger(__name__)

_PROTOCOLS: Final = ["http/1.1"]


class ServerCertificate:
    """Raises ConfigurationError if the files cannot be used at start. Call `refresh` every few seconds.

    `context`: for the next handshake. `expires`: of the first certificate in the file, in seconds since 1970.
    `failures`: changes that could not be used. `error`: why the present files are not in force; None while they are.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._chain = SecretFile(config.certificate_file, "the certificates of the port (PEM)")
        self._key = SecretFile(config.key_file, "the key of the port's certificate (PEM)")
        self.failures = 0
        self._unusable = self._logged = 0  # pairs that could not be loaded, and how many of them were logged
        self.error: str | None = None
        self._chain.read()
        self._key.read()
        self.context, self.expires = self._load()
        self._report("valid until")

    def refresh(self) -> None:
        """Reads the files again if they changed."""
        try:
            if [content for content in (self._chain.poll(), self._key.poll()) if content is not None]:
                self.context, self.expires = self._load()
                self.error = None
                self._report("reloaded, valid until")
        except ConfigurationError as error:
            self._keep(f"{error}; the previous certificate stays in force")

    def _load(self) -> tuple[ssl.SSLContext, float]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(_PROTOCOLS)
        chain, key = self._config.certificate_file, self._config.key_file
        try:
            context.load_cert_chain(chain, key, password=_no_passphrase)
            return context, _expiry(chain.read_bytes())
        except (OSError, ValueError) as error:  # SSLError is an OSError
            self._unusable += 1
            raise ConfigurationError(f"{chain} and {key} are not a certificate and its key: {_why(error)}") from error

    def _keep(self, message: str) -> None:
        """A missing file is reported at each check, and counts and is logged once."""
        if (message, self._unusable) != (self.error, self._logged):
            self.failures += 1
            log.warning("%s", message)
        self.error, self._logged = message, self._unusable

    def _report(self, what: str) -> None:
        date = datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.expires <= wall():
            log.warning("the certificate in %s has expired, at %s: clients refuse it", self._chain.path, date)
        else:
            log.info("certificate in %s: %s %s", self._chain.path, what, date)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else error.reason or str(error)
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; mount one without")


def _expiry(chain: bytes) -> float:
    """Of the server's own certificate, which is the first. Raises ValueError where there is none."""
    from cryptography import x509  # only routers with TLS need it

    return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc.timestamp()
