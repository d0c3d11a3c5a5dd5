"""Authenticates the callers of a pod's own routes: listed service accounts, by tokens that the API server signed.

The API server's keys are fetched once, again each hour, and when a token names an unknown key. The last is limited to
once in `SELDOM` seconds, so that invalid tokens cause few calls. While the API server is unreachable, the known keys
stay valid.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import jwt

from plumage.api_server import ApiServerError
from plumage.errors import CallerRefusedError, ConfigurationError
from plumage.identity import caller_of, key_id_of, parse_keys
from plumage.incluster.api import ApiServer

__all__ = ["Callers", "read_token"]

log = logging.getLogger(__name__)

KEYS_PATH: Final = "/openid/v1/jwks"  # every service account may read it (system:service-account-issuer-discovery)
SELDOM: Final = 10.0  # seconds
HOURLY: Final = 3600.0
_SCHEME: Final = "bearer "


class Callers:
    """`names`: full names, `system:serviceaccount:NAMESPACE:NAME`. clock: seconds since 1970."""

    def __init__(self, api: ApiServer, names: Iterable[str], clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._names = frozenset(names)
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = -HOURLY
        self._error = "the API server's keys were not read yet"
        self._fetching = asyncio.Lock()

    async def check(self, authorization: str) -> str:
        """The caller's full name, from an Authorization header. CallerRefusedError if it is not on the list."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise CallerRefusedError(401, "a service account's token is needed: Authorization: Bearer TOKEN")
        token = authorization[len(_SCHEME) :].strip()
        await self._have_key(key_id_of(token))
        if not self._keys:
            raise CallerRefusedError(503, f"callers cannot be authenticated now: {self._error}")
        caller = caller_of(token, self._keys, self._clock())
        if caller not in self._names:
            raise CallerRefusedError(403, f"{caller} may not call this route: it is not among this pod's callers")
        return caller

    async def _have_key(self, name: str) -> None:
        """Waits for the key of a caller only where it is not known.

        So a token with an unknown key does not block all callers while the API server hangs.
        """
        if name in self._keys and self._since < HOURLY:
            return
        async with self._fetching:
            if self._since >= HOURLY or (name not in self._keys and self._since >= SELDOM):
                await self._fetch()

    @property
    def _since(self) -> float:
        return time.monotonic() - self._fetched_at

    async def _fetch(self) -> None:
        self._fetched_at = time.monotonic()
        try:
            self._keys = parse_keys(await self._api.get(KEYS_PATH))
            self._error = f"{KEYS_PATH} has no key"
        except (ApiServerError, ConfigurationError) as error:
            self._error = str(error)
            log.warning("cannot read the keys of service accounts' tokens: %s", error)
        finally:
            self._fetched_at = time.monotonic()  # callers that waited for this answer do not fetch again


def read_token(path: Path) -> str | None:
    """The current projected token, for the pod's own calls. None, and a line in the log, if there is none."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("cannot read this pod's token in %s: %s", path, type(error).__name__)
        return None
    return token or None
