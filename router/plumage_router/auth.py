"""Who is asking: API keys of tenants, and the admin key, from files that may be rotated under a running router.

The keys file has one `TENANT KEY` a line (or a key alone, whose tenant is then a digest of it); `#` first or after a
blank starts a comment. The admin file holds one key. Keys are kept and looked up as digests, so that neither a dump of
memory nor the time a comparison takes tells anything about them. A tenant's cache salt is the pool's business
(`engine_keys.py`), since several pools may share one file of keys.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plumage.errors import ConfigurationError, RefusedError
from plumage_router.config import AuthConfig
from plumage_router.secret_file import SecretFile, one_line

if TYPE_CHECKING:
    from plumage.incluster.callers import Callers

__all__ = ["Auth", "KeyFile", "Tenant", "bearer"]

log = logging.getLogger(__name__)

_SCHEME = b"bearer "
_COMMENT = re.compile(r"(?:^|\s)#")
_ADMIN = "the admin key"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose key a request carries; "" where no keys are in use, and all clients share."""

    name: str


def bearer(header: bytes | None) -> bytes | None:
    """The key in an Authorization header."""
    if header is None or header[:7].lower() != _SCHEME:
        return None
    return header[7:].strip()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class KeyFile:
    """Tenants by key. A file that is unreadable, wrong, empty or half written leaves the keys as they were."""

    def __init__(self, path: Path) -> None:
        self._file = SecretFile(path, "API keys (a line each: `TENANT KEY`)")
        self._tenants = _parse(self._file.read(), path)

    @property
    def error(self) -> str | None:
        """Why the file's keys are not in force; None while they are."""
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
                log.info("API keys read again: %d", len(self._tenants))
        except ConfigurationError as error:
            self._file.keep(error)


def _parse(content: bytes, path: Path) -> dict[bytes, tuple[bytes, Tenant]]:
    """Tenants by the digests of their keys. ConfigurationError names the line that is wrong, or says that no line
    holds a key: to revoke all keys, replace them with one that nobody has."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text: it must hold lines of `TENANT KEY`") from error
    keys: dict[bytes, tuple[bytes, Tenant]] = {}
    for number, line in enumerate(lines, 1):
        words = _COMMENT.split(line, maxsplit=1)[0].split()
        if len(words) > 2:
            raise ConfigurationError(f"{path} line {number}: it must be `TENANT KEY` or a key alone")
        if words:
            digest = _digest(words[-1].encode())
            if digest in keys:
                raise ConfigurationError(f"{path} line {number}: this key stands on an earlier line too")
            keys[digest] = (digest, Tenant(words[0] if len(words) == 2 else digest.hex()[:12]))
    if not keys:
        raise ConfigurationError(f"{path} holds no key: with it in force every request would be refused")
    return keys


class Auth:
    """`enabled`: clients need a key. The admin key may come as the client's own key or in `X-Plumage-Admin-Key`.
    `callers`: service accounts that may read the fleet's figures besides."""

    def __init__(self, config: AuthConfig, callers: Callers | None = None) -> None:
        self._callers = callers
        self._keys = KeyFile(config.api_keys_file) if config.api_keys_file else None
        self._admin_file = SecretFile(config.admin_key_file, _ADMIN) if config.admin_key_file else None
        self._admin = None if self._admin_file is None else _admin_digest(self._admin_file, self._admin_file.read())
        self._nobody = Tenant("")

    @property
    def enabled(self) -> bool:
        return self._keys is not None

    @property
    def error(self) -> str | None:
        """Why a file of keys is not in force; None while all are."""
        files = (self._keys, self._admin_file)
        return "; ".join(file.error for file in files if file is not None and file.error) or None

    def tenant(self, headers: dict[bytes, bytes]) -> Tenant | None:
        """Who sent these headers; None when no key of theirs is known."""
        if self._keys is None:
            return self._nobody
        key = bearer(headers.get(b"authorization"))
        return self._keys.find(key) if key else None

    def is_admin(self, headers: dict[bytes, bytes]) -> bool:
        """True with the admin key; nobody is while none is configured."""
        if self._admin is None:
            return False
        key = headers.get(b"x-plumage-admin-key") or bearer(headers.get(b"authorization")) or b""
        return hmac.compare_digest(_digest(key), self._admin)

    async def check_reader(self, headers: dict[bytes, bytes]) -> None:
        """RefusedError unless the fleet's figures may be told: to the admin, and to `callers`."""
        if self.is_admin(headers):
            return
        if self._callers is None:
            raise RefusedError(401, self.admin_refusal)
        await self._callers.check(headers.get(b"authorization", b"").decode("latin-1"))

    @property
    def admin_refusal(self) -> str:
        """What to tell a client that is not the admin, and how it could be."""
        if self._admin is None:
            return "This router has no admin key, so nobody may see this: name a file with one in auth.adminKeyFile."
        return "The admin key is needed: X-Plumage-Admin-Key: KEY."

    def refresh(self) -> None:
        """Reads changed files again; call it now and then."""
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
