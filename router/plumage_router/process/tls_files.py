"""PEM files of TLS, which are read again while the router runs.

A change is used completely or not at all. Files that do not belong together, or that cannot be parsed, change nothing:
the previous ones stay in force. Connections keep what they began with, and new handshakes get the new context. A key
with a passphrase is refused, since nobody is there to type it.
"""

from __future__ import annotations

import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from plumage.errors import ConfigurationError
from plumage_router.clock import wall
from plumage_router.process.secret_file import SecretFile

__all__ = ["TlsFiles", "no_passphrase"]

log = logging.getLogger(__name__)

_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "they do not belong together",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate",
}


class TlsFiles(ABC):
    """Raises ConfigurationError if the files cannot be used at start. Call `refresh` every few seconds.

    chain: the file whose first certificate is shown to the peer; None without one.
    `context`: for the next handshake. `expires`: of that certificate, in seconds since 1970; None without one.
    `failures`: changes that could not be used. `error`: why the present files are not in force; None while they are.
    """

    def __init__(self, files: Sequence[SecretFile], chain: Path | None) -> None:
        self._files = files
        self._chain = chain
        self.failures = 0
        self._unusable = self._logged = 0  # contents that could not be loaded, and how many of them were logged
        self.error: str | None = None
        for file in files:
            file.read()
        self.context, self.expires = self._load()
        self._report("valid until")

    def refresh(self) -> None:
        """Reads the files again if they changed."""
        try:
            if [content for content in [file.poll() for file in self._files] if content is not None]:
                self.context, self.expires = self._load()
                self.error = None
                self._report("reloaded, valid until")
        except ConfigurationError as error:
            self._keep(f"{error}; the previous ones stay in force")

    @abstractmethod
    def _make(self) -> ssl.SSLContext:
        """Makes a context from the files. Raises OSError or ValueError if they cannot be used."""

    @abstractmethod
    def _cannot(self) -> str:
        """What the files are not, as the beginning of an error."""

    def _load(self) -> tuple[ssl.SSLContext, float | None]:
        try:
            return self._make(), None if self._chain is None else _expiry(self._chain.read_bytes())
        except (OSError, ValueError) as error:  # SSLError is an OSError
            self._unusable += 1
            raise ConfigurationError(f"{self._cannot()}: {_why(error)}") from error

    def _keep(self, message: str) -> None:
        """Keeps the present files. A missing one is reported at each check, and counts and is logged once."""
        if (message, self._unusable) != (self.error, self._logged):
            self.failures += 1
            log.warning("%s", message)
        self.error, self._logged = message, self._unusable

    def _report(self, what: str) -> None:
        if self.expires is None:
            return
        date = datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.expires <= wall():
            log.warning("the certificate in %s has expired, at %s: peers refuse it", self._chain, date)
        else:
            log.info("certificate in %s: %s %s", self._chain, what, date)


def no_passphrase() -> str:
    """The callback of `load_cert_chain`."""
    raise ValueError("the key has a passphrase; mount one without")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", error.reason or str(error))
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _expiry(chain: bytes) -> float:
    """Returns the expiry of the process's own certificate, which is the first. Raises ValueError where there is
    none."""
    from cryptography import x509  # only routers with TLS need it

    return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc.timestamp()
