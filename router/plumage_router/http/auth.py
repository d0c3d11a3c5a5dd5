"""Authenticates clients: the API keys of tenants and the admin key, from files that may change while the router runs.

- The keys file has one `TENANT KEY` a line. A key alone gets a tenant named by its digest. `#` starts a comment.
- The admin file contains one key.
- Keys are stored and compared as digests, so neither a memory dump nor the time of a comparison reveals them.
- A tenant's cache salt belongs to the pool (`fleet/engine_keys.py`), because several pools may share one keys file.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plumage.errors import CallerRefusedError, ConfigurationError
from plumage.incluster.config import ApiServerConfig
from plumage.settings.router_config import AuthConfig
from plumage_router.process.secret_file import SecretFile, one_line

__all__ = ["Auth", "CallerCheck", "KeyFile", "Tenant", "bearer", "find_callers"]

log = logging.getLogger(__name__)

_SCHEME = b"bearer "
_COMMENT = re.compile(r"(?:^|\s)#")
_ADMIN = "the admin key"


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a request's key; "" without API keys."""

    name: str


def bearer(header: bytes | None) -> bytes | None:
    """Returns the key in an Authorization header."""
    if header is None or header[:7].lower() != _SCHEME:
        return None
    return header[7:].strip()


def _key(headers: dict[bytes, bytes]) -> bytes | None:
    """Returns the client's key. Anthropic's clients send it in X-Api-Key."""
    return bearer(headers.get(b"authorization")) or headers.get(b"x-api-key")


def _digest(key: bytes) -> bytes:
    """BLAKE2s: for a key it takes a third of the time of OpenSSL's SHA-256."""
    return hashlib.blake2s(key).digest()


def _name(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:12]


class CallerCheck(Protocol):
    """Checks service accounts (`plumage.incluster.callers.Callers`, which needs the extra `kube`)."""

    def check(self, authorization: str) -> Awaitable[object]:
        """Await it: it raises CallerRefusedError unless the header belongs to a caller that is allowed."""
        ...


def find_callers(auth: AuthConfig, api_server: ApiServerConfig) -> CallerCheck | None:
    """Checks the service accounts that may read the fleet report; None without any. `kube` is imported for them only,
    because it is optional."""
    if not auth.callers:
        return None
    from plumage.incluster.api import ApiServer
    from plumage.incluster.callers import Callers

    return Callers(ApiServer(api_server), auth.callers)


class KeyFile:
    """Tenants by key. An unreadable, wrong, empty or half-written file leaves the known keys in force."""

    def __init__(self, path: Path) -> None:
        self._file = SecretFile(path, "API keys (a line each: `TENANT KEY`)")
        self._tenants = _parse(self._file.read(), path)

    @property
    def error(self) -> str | None:
        """Why the file is not in force; None while it is."""
        return self._file.error

    def find(self, key: bytes) -> Tenant | None:
        digest = _digest(key)
        found = self._tenants.get(digest)
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def refresh(self) -> None:
        try:
            content = self._file.poll()
            if content is not None:
                self._tenants = _parse(content, self._file.path)
                self._file.keep(None)
                log.info("API keys reloaded: %d", len(self._tenants))
        except ConfigurationError as error:
            self._file.keep(error)


def _parse(content: bytes, path: Path) -> dict[bytes, tuple[bytes, Tenant]]:
    """Returns tenants by the digests of their keys.

    Raises ConfigurationError for a wrong line, and for a file without keys. To revoke all keys, put an unused key
    there.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text: it must contain lines of `TENANT KEY`") from error
    keys: dict[bytes, tuple[bytes, Tenant]] = {}
    for number, line in enumerate(lines, 1):
        words = _COMMENT.split(line, maxsplit=1)[0].split()
        if len(words) > 2:
            raise ConfigurationError(f"{path} line {number}: it must be `TENANT KEY` or a key alone")
        if words:
            key = words[-1].encode()
            digest = _digest(key)
            if digest in keys:
                raise ConfigurationError(f"{path} line {number}: this key is on an earlier line too")
            keys[digest] = (digest, Tenant(words[0] if len(words) == 2 else _name(key)))
    if not keys:
        raise ConfigurationError(f"{path} contains no key: every request would be refused")
    return keys


class Auth:
    """The admin key is sent as the client's own key or in `X-Plumage-Admin-Key`.

    `enabled`: clients need a key. `nobody`: the tenant of all clients while they need none.
    callers: service accounts that may read the fleet report.
    """

    def __init__(self, config: AuthConfig, callers: CallerCheck | None = None) -> None:
        self._callers = callers
        self._keys = KeyFile(config.api_keys_file) if config.api_keys_file else None
        self._admin_file = SecretFile(config.admin_key_file, _ADMIN) if config.admin_key_file else None
        self._admin = None if self._admin_file is None else _admin_digest(self._admin_file, self._admin_file.read())
        self.enabled = self._keys is not None
        self.nobody = Tenant("")

    @property
    def error(self) -> str | None:
        """Why a key file is not in force; None while all are."""
        files = (self._keys, self._admin_file)
        return "; ".join(file.error for file in files if file is not None and file.error) or None

    def tenant(self, headers: dict[bytes, bytes]) -> Tenant | None:
        """Returns the tenant that sent these headers; None without a known key."""
        if self._keys is None:
            return self.nobody
        key = _key(headers)
        return self._keys.find(key) if key else None

    def is_admin(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the headers contain the admin key; never without a configured one."""
        if self._admin is None:
            return False
        key = headers.get(b"x-plumage-admin-key") or _key(headers) or b""
        return hmac.compare_digest(_digest(key), self._admin)

    def check_reader(self, headers: dict[bytes, bytes]) -> Awaitable[object] | None:
        """Raises CallerRefusedError unless the admin or one of `callers` asks for the fleet report.

        Returns what must be awaited for the answer; None for the admin. It is no coroutine, so that it is compiled.
        """
        if self.is_admin(headers):
            return None
        if self._callers is None:
            raise CallerRefusedError(401, self.admin_refusal)
        return self._callers.check(headers.get(b"authorization", b"").decode("latin-1"))

    @property
    def admin_refusal(self) -> str:
        """The error message for a client without the admin key."""
        if self._admin is None:
            return "This router has no admin key, so this is closed: name a file with one in auth.adminKeyFile."
        return "The admin key is needed: X-Plumage-Admin-Key: KEY."

    def refresh(self) -> None:
        """Reads changed files again. Call it every few seconds."""
        if self._keys is not None:
            self._keys.refresh()
        if self._admin_file is not None:
            try:
                content = self._admin_file.poll()
                if content is not None:
                    self._admin = _admin_digest(self._admin_file, content)
                    self._admin_file.keep(None)
            except ConfigurationError as error:
                self._admin_file.keep(error)


def _admin_digest(file: SecretFile, content: bytes) -> bytes:
    return _digest(one_line(content, file.path, _ADMIN))
