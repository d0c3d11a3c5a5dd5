"""PEM files of a running TLS context, which are read again when they change.

A server keeps its context, so a change is loaded into that one. It is first loaded into a context of its own: files
that cannot be used change nothing. As in vLLM, a context forgets no authority: one that is no longer in the file is
trusted until the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from plumage.errors import ConfigurationError
from plumage.loopback import is_loopback

__all__ = ["ReloadedContext", "client_context", "server_context"]

log = logging.getLogger(__name__)

_INTERVAL: Final = 2.0  # seconds between two looks at the files, as in the router

_Stamp = tuple[tuple[int, int, int], ...]


class ReloadedContext:
    """`context`: for the whole life of the process. Raises ConfigurationError if the files cannot be used at start.

    certificate, key: shown to the peer; None for none. authority: that verifies the peer; None for none.
    """

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        *,
        certificate: Path | None,
        key: Path | None,
        authority: Path | None = None,
    ) -> None:
        self._make = make
        self._certificate, self._key, self._authority = certificate, key, authority
        self._seen = self._stamp()
        self._error: str | None = None
        self.context = make()
        try:
            self._load(self.context)
        except (OSError, ValueError) as error:
            raise ConfigurationError(self._message(error)) from error

    async def run(self) -> None:
        """Looks at the files for ever; cancel to stop."""
        while True:
            await asyncio.sleep(_INTERVAL)
            self.refresh()

    def refresh(self) -> None:
        """Loads the files if they changed and can be used. Otherwise the log says once why not."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self._load(self._make())
            if self._stamp() != stamp:
                return  # they change just now: look again later
            self._load(self.context)
        except (OSError, ValueError) as error:
            self._report(f"{self._message(error)}; the previous ones stay in force")
        else:
            self._seen = stamp
            self._error = None
            log.info("certificate in %s: reloaded", self._certificate)

    def _load(self, context: ssl.SSLContext) -> None:
        if self._certificate is not None:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        if self._authority is not None:
            context.load_verify_locations(self._authority)

    def _stamp(self) -> _Stamp | None:
        """None while a file is missing."""
        paths = [path for path in (self._certificate, self._key, self._authority) if path is not None]
        try:
            stats = [path.stat() for path in paths]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def _message(self, error: Exception) -> str:
        paths = [str(path) for path in (self._certificate, self._key, self._authority) if path is not None]
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        return f"TLS cannot use {', '.join(paths)}: {why}"

    def _report(self, message: str) -> None:
        if message != self._error:
            log.warning("%s", message)
        self._error = message


def server_context(certificate: Path, key: Path, client_authority: Path | None) -> ReloadedContext:
    """Makes the context of an engine's port. client_authority: clients need a certificate of it; None: they need
    none."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return ReloadedContext(make, certificate=certificate, key=key, authority=client_authority)


def client_context(host: str, certificate: Path | None, key: Path | None) -> ReloadedContext:
    """Makes the context of a client of `host`. On a loopback address there is nothing to verify: the engine is in the
    same pod."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context()
        if is_loopback(host):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    return ReloadedContext(make, certificate=certificate, key=key)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; mount one without")
