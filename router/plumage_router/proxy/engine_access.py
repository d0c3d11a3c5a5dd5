"""How a pool's requests reach its engines: keys, TLS, connections, and the header lines that requests share.

The engines' keys, the salt key of tenants and the certificates are files of the pool that may be replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from plumage.settings.router_config import PoolConfig
from plumage_router.fleet.engine_keys import EngineKeys, Salts, SecretLine
from plumage_router.fleet.replicas import Member, Replica
from plumage_router.http.paths import FORM_PATHS
from plumage_router.http.upstream import ConnectionPool
from plumage_router.process.engine_tls import UNVERIFIED, EngineTls
from plumage_router.request.prompt import Prompt

__all__ = ["EngineAccess"]

log = logging.getLogger(__name__)


class EngineAccess:
    """`read()` before the first request. `tls`: None where the pool's settings name no certificates for engines."""

    def __init__(self, config: PoolConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.tls = None if config.engine_tls is None else EngineTls(config.engine_tls)
        self.keys = EngineKeys()
        self.salts = Salts()
        self._loop = loop
        self._heads: dict[tuple[bytes, str], tuple[bytes, bytes | None]] = {}  # by path and replica
        self._key = SecretLine(config.engine_api_key_file, "the engines' API key")
        self._previous_key = SecretLine(
            config.previous_engine_api_key_file, "the engines' previous API key", needed=False
        )
        self._salt_key = SecretLine(config.salt_key_file, "the pool's salt key")

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def error(self) -> str | None:
        """Why a file is not in force; None while all are."""
        errors = [secret.error for secret in (self._key, self._previous_key, self._salt_key)]
        if self.tls is not None:
            errors.append(self.tls.error)
        return "; ".join(error for error in errors if error) or None

    def read(self) -> None:
        """Reads the keys. Raises ConfigurationError without a needed one."""
        for secret in (self._key, self._previous_key, self._salt_key):
            secret.read()
        self._use()

    def refresh(self) -> None:
        """Reads changed files again."""
        changed = [secret.refresh() for secret in (self._key, self._previous_key, self._salt_key)]
        if any(changed):
            log.info("pool %s: keys reloaded", self.config.pool)
            self._use()
        if self.tls is not None:
            self.tls.refresh()

    def _use(self) -> None:
        self.keys.use(self._key.value, self._previous_key.value)
        self.salts.use(self._salt_key.value)
        self._heads.clear()

    # -- requests -----------------------------------------------------------------------------------------------------

    def connections_to(self, member: Member) -> ConnectionPool:
        """Makes the connections to a new replica."""
        if member.secure and self.tls is None:
            log.warning("replica %s serves TLS, and without engineTls its certificate is not verified", member.id)
        return ConnectionPool(
            *member.address(),
            self._loop,
            max_idle=self.config.limits.max_idle_per_replica,
            connect_timeout=self.config.timeouts.connect,
            tls=(self.tls or UNVERIFIED) if member.secure else None,
        )

    def head(self, prompt: Prompt, replica: Replica) -> tuple[bytes, bytes | None]:
        """Returns the header lines that all requests to this replica share, and the engine key in them."""
        path, url = prompt.path, replica.member.url
        if prompt.of_response:  # each has a path of its own
            secret = self.keys.of(url)
            return _make_head(b"%b %b" % (prompt.method, path), replica, secret), secret
        head = self._heads.get((path, url))
        if head is None:
            secret = self.keys.of(url)
            made = _make_head(b"POST %b" % path, replica, secret)
            if path not in FORM_PATHS:  # a form has its boundary there
                made += b"content-type: application/json\r\n"
            head = self._heads[path, url] = made, secret
        return head

    def forget_heads(self) -> None:
        """Call when a replica leaves, so that its heads need no memory."""
        self._heads.clear()

    def use_other_key(self, replica: Replica, refused: Sequence[bytes]) -> bool:
        """Returns whether there is a key that the engine has not refused. `head` then uses it."""
        self._heads.clear()
        return self.keys.refused(replica.member.url, refused) is not None


def _make_head(what: bytes, replica: Replica, secret: bytes | None) -> bytes:
    """Makes the lines. what: method and target."""
    host, port = replica.member.address()
    name = f"[{host}]" if ":" in host else host
    authorization = b"authorization: Bearer %b\r\n" % secret if secret else b""
    return b"%b HTTP/1.1\r\nhost: %b:%d\r\n%b" % (what, name.encode(), port, authorization)
