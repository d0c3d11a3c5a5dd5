"""The keys in a pool's Secret: the engines' API key, and the key for the cache salts of tenants.

Engines answer `/v1` only with their key. During a key change some engines have the new key and some the old one. So a
router keeps both, remembers which key each engine accepted, and tries the other after a 401.

A salt is an HMAC of the tenant's name. A client that reaches an engine cannot compute it, so it cannot probe what a
tenant cached. All routers of a pool need the same salt key; otherwise they do not find each other's cached prefixes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plumage.errors import ConfigurationError
from plumage_router.http.auth import Tenant
from plumage_router.process.secret_file import SecretFile, one_line

__all__ = ["EngineKeys", "Salts", "SecretLine"]

log = logging.getLogger(__name__)

_MAX_KEYS: Final = 3  # the current key, the one before it, and one more for a change within a change
_MAX_SALTS: Final = 4096
_MAX_ENGINES: Final = 4096
_SALT_BYTES: Final = 18  # 144 bits, 24 characters of base64
_PURPOSE: Final = b"plumage tenant salt\0"


class SecretLine:
    """A secret of one line, in a file that may be replaced. `value`: None without a file.

    needed: without the file, `read` raises ConfigurationError and `refresh` changes nothing.
    """

    def __init__(self, path: Path | None, what: str, *, needed: bool = True) -> None:
        self._file = SecretFile(path, what) if path is not None else None
        self._what = what
        self._needed = needed
        self.value: bytes | None = None

    @property
    def error(self) -> str | None:
        """Why the file is not in force; None while it is."""
        return self._file.error if self._file is not None else None

    def read(self) -> None:
        """Call at start. Raises ConfigurationError if the file cannot be used."""
        if self._file is not None and (self._needed or self._file.path.exists()):
            self.value = one_line(self._file.read(), self._file.path, self._what)

    def refresh(self) -> bool:
        """Reads the file again. Returns whether the secret changed."""
        if self._file is None:
            return False
        if not self._needed and not self._file.path.exists():
            before, self.value = self.value, None
            return before is not None
        try:
            content = self._file.poll()
            if content is None:
                return False
            before, self.value = self.value, one_line(content, self._file.path, self._what)
            self._file.keep(None)
        except ConfigurationError as error:
            self._file.keep(error)
            return False
        return self.value != before


class EngineKeys:
    """The keys that engines may accept, the most likely first, and the key that each engine (URL) accepted last."""

    def __init__(self) -> None:
        self._keys: tuple[bytes, ...] = ()
        self._accepted: dict[str, bytes] = {}

    @property
    def all(self) -> tuple[bytes, ...]:
        return self._keys

    def use(self, *keys: bytes | None) -> None:
        """Sets the keys. The previous current key stays known, for engines that were not restarted."""
        known = [key for key in (*keys, *self._keys[:1]) if key is not None]
        self._keys = tuple(dict.fromkeys(known))[:_MAX_KEYS]
        self._accepted.clear()

    def of(self, url: str) -> bytes | None:
        """The key to send to an engine; None without a configured key."""
        return self._accepted.get(url) or (self._keys[0] if self._keys else None)

    def refused(self, url: str, tried: Sequence[bytes]) -> bytes | None:
        """The engine refused all of `tried`. Returns another key and remembers it; None without another one."""
        other = next((key for key in self._keys if key not in tried), None)
        if other is None:
            self._accepted.pop(url, None)
            return None
        if len(self._accepted) >= _MAX_ENGINES:
            self._accepted.clear()
        self._accepted[url] = other
        return other


class Salts:
    """The cache salts of tenants."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._made: dict[str, str] = {}

    def use(self, key: bytes | None) -> None:
        """Sets another salt key. Prefixes that tenants cached before are not found any more."""
        self._key = key
        self._made.clear()

    def of(self, tenant: Tenant | None) -> str:
        """base64 of an HMAC-SHA256; "" without API keys. Raises ConfigurationError without a salt key."""
        if tenant is None or not tenant.name:
            return ""
        if self._key is None:
            raise ConfigurationError("the pool has no salt key, which keeps tenants apart: set saltKeyFile")
        salt = self._made.get(tenant.name)
        if salt is None:
            if len(self._made) >= _MAX_SALTS:
                self._made.clear()
            salt = self._made[tenant.name] = _salt(self._key, tenant.name)
        return salt


def _salt(key: bytes, tenant: str) -> str:
    digest = hmac.new(key, _PURPOSE + tenant.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_SALT_BYTES]).decode()
