"""What a pool's Secret holds: the key of its engines, and the key that tenants' cache salts are made with.

Engines answer `/v1` only with their key. While it is being changed some engines have the new one and some the old one:
so a router keeps both, remembers for each engine which one it took last, and tries the other after a 401. A salt is an
HMAC of the tenant's name, so that nobody who reaches an engine can compute it and probe what a tenant cached; every
router of a pool must have the same salt key, or tenants' caches are found by some routers only.
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
from plumage_router.auth import Tenant
from plumage_router.secret_file import SecretFile, one_line

__all__ = ["EngineKeys", "Salts", "SecretLine"]

log = logging.getLogger(__name__)

_KEPT: Final = 3  # engine keys: the present one, the one before it, and one more for a change within a change
_MOST_SALTS: Final = 4096
_MOST_ENGINES: Final = 4096
_SALT_BYTES: Final = 18  # 144 bits, 24 characters of base64
_PURPOSE: Final = b"plumage tenant salt\0"


class SecretLine:
    """A secret of one line, in a file that may be replaced; `value` is None where there is no such file. needed: a
    file that is missing is a ConfigurationError at start, and later changes nothing."""

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
        """At start. ConfigurationError where the file can't be used."""
        if self._file is not None and (self._needed or self._file.path.exists()):
            self.value = one_line(self._file.read(), self._file.path, self._what)

    def refresh(self) -> bool:
        """Whether it is another one now."""
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
    """The keys that engines may ask for, the likeliest first. Which of them an engine took last is known by its URL."""

    def __init__(self) -> None:
        self._keys: tuple[bytes, ...] = ()
        self._took: dict[str, bytes] = {}

    @property
    def all(self) -> tuple[bytes, ...]:
        return self._keys

    def use(self, *keys: bytes | None) -> None:
        """These from now on, and for engines that were not restarted the present key of before."""
        known = [key for key in (*keys, *self._keys[:1]) if key is not None]
        self._keys = tuple(dict.fromkeys(known))[:_KEPT]
        self._took.clear()

    def of(self, url: str) -> bytes | None:
        """The key to send to an engine; None where none is configured."""
        return self._took.get(url) or (self._keys[0] if self._keys else None)

    def refused(self, url: str, tried: Sequence[bytes]) -> bytes | None:
        """The engine did not take any of `tried`: another key to try, which is remembered; None where there is none."""
        other = next((key for key in self._keys if key not in tried), None)
        if other is None:
            self._took.pop(url, None)
            return None
        if len(self._took) >= _MOST_ENGINES:
            self._took.clear()
        self._took[url] = other
        return other


class Salts:
    """Cache salts of tenants. key: of the pool; without one there are no tenants, and no salts."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._made: dict[str, str] = {}

    def use(self, key: bytes | None) -> None:
        """Another key: what tenants had in caches is not found any more."""
        self._key = key
        self._made.clear()

    def of(self, tenant: Tenant | None) -> str:
        """base64 of an HMAC-SHA256; "" for everybody where no keys are in use."""
        if tenant is None or not tenant.name:
            return ""
        if self._key is None:
            raise ConfigurationError("the pool has no salt key, so tenants can't be kept apart: set saltKeyFile")
        salt = self._made.get(tenant.name)
        if salt is None:
            if len(self._made) >= _MOST_SALTS:
                self._made.clear()
            salt = self._made[tenant.name] = _salt(self._key, tenant.name)
        return salt


def _salt(key: bytes, tenant: str) -> str:
    digest = hmac.new(key, _PURPOSE + tenant.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_SALT_BYTES]).decode()
