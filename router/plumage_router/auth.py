"""Who is asking: API keys of tenants, and the admin key, from files that may be rotated under a running router.

The keys file has one `TENANT KEY` a line (or a key alone, whose tenant is then a digest of it); `#` first or after a
blank starts a comment. The admin file holds one key. Keys are kept and looked up as digests, so that neither a dump of
memory nor the time a comparison takes tells anything about them. A tenant's cache salt is derived from its name alone:
every router of a pool must set the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from plumage.errors import ConfigurationError, RefusedError
from plumage_router.config import AuthConfig

if TYPE_CHECKING:
    from plumage.incluster.callers import Callers

__all__ = ["Auth", "KeyFile", "Tenant", "bearer", "read_secret"]

log = logging.getLogger(__name__)

_SCHEME = b"bearer "
_COMMENT = re.compile(r"(?:^|\s)#")


@dataclass(frozen=True, slots=True)
class Tenant:
    """`salt` goes into the tenant's cache blocks and chunk chains; "" when everybody shares."""

    name: str
    salt: str = field(repr=False)


def bearer(header: bytes | None) -> bytes | None:
    """The key in an Authorization header."""
    if header is None or header[:7].lower() != _SCHEME:
        return None
    return header[7:].strip()


def read_secret(path: Path, what: str) -> bytes:
    """The one line of a secret's file."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} from {path}: {error.strerror}") from error
    if not secret or b"\n" in secret:
        raise ConfigurationError(f"{path} must hold {what} on a single line")
    return secret


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _salt(tenant: str) -> str:
    digest = hashlib.sha256(b"plumage tenant salt\0" + tenant.encode()).digest()
    return base64.urlsafe_b64encode(digest[:18]).decode()


class KeyFile:
    """Tenants by key. A file that became unreadable or wrong leaves the keys as they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._tenants = self._load()

    def find(self, key: bytes) -> Tenant | None:
        digest = _digest(key)
        found = self._tenants.get(digest)
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def refresh(self) -> None:
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._tenants = self._load()
                log.info("API keys read again: %d", len(self._tenants))
        except ConfigurationError as error:
            log.warning("%s; keeping the keys known before", error)

    def _stamp(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigurationError(f"cannot read API keys from {self._path}: {error.strerror}") from error
        return stat.st_mtime_ns, stat.st_ino

    def _load(self) -> dict[bytes, tuple[bytes, Tenant]]:
        try:
            lines = self._path.read_text().splitlines()
        except OSError as error:
            raise ConfigurationError(f"cannot read API keys from {self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self._path} is not UTF-8 text: it must hold lines of `TENANT KEY`") from error
        keys: dict[bytes, tuple[bytes, Tenant]] = {}
        for number, line in enumerate(lines, 1):
            words = _COMMENT.split(line, maxsplit=1)[0].split()
            if len(words) > 2:
                raise ConfigurationError(f"{self._path} line {number}: it must be `TENANT KEY` or a key alone")
            if words:
                digest = _digest(words[-1].encode())
                if digest in keys:
                    raise ConfigurationError(f"{self._path} line {number}: this key stands on an earlier line too")
                name = words[0] if len(words) == 2 else digest.hex()[:12]
                keys[digest] = (digest, Tenant(name, _salt(name)))
        return keys


class Auth:
    """`enabled`: clients need a key. The admin key may come as the client's own key or in `X-Plumage-Admin-Key`.
    `callers`: service accounts that may read the fleet's figures besides."""

    def __init__(self, config: AuthConfig, callers: Callers | None = None) -> None:
        self._callers = callers
        self._keys = KeyFile(config.api_keys_file) if config.api_keys_file else None
        self._admin_file = config.admin_key_file
        self._admin = _digest(read_secret(config.admin_key_file, "the admin key")) if config.admin_key_file else None
        self._nobody = Tenant("", "")

    @property
    def enabled(self) -> bool:
        return self._keys is not None

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
                self._admin = _digest(read_secret(self._admin_file, "the admin key"))
            except ConfigurationError as error:
                log.warning("%s; keeping the key known before", error)
