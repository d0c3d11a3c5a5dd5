"""Who may call a pod's own routes: the service accounts on a list, known by tokens that the API server signed.

The API server's keys are asked for once, again each hour, and when a token names one that is not known, at most every
`SELDOM` seconds: whoever sends nonsense must not make a pod ask the API server. While it is away the keys known before
count on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import jwt

from plumage.errors import CallerRefusedError, ConfigurationError
from plumage.identity import caller_of, key_id_of, parse_keys
from plumage.incluster.api import ApiServer, ApiServerError

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
        self._asked = -HOURLY
        self._trouble = "the API server's keys were not read yet"
        self._asking = asyncio.Lock()

    async def check(self, authorization: str) -> str:
        """Who calls, by an Authorization header; CallerRefusedError for everybody who is not on the list."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise CallerRefusedError(401, "a service account's token is needed: Authorization: Bearer TOKEN")
        token = authorization[len(_SCHEME) :].strip()
        await self._have_key(key_id_of(token))
        if not self._keys:
            raise CallerRefusedError(503, f"nobody can be known here now: {self._trouble}")
        caller = caller_of(token, self._keys, self._clock())
        if caller not in self._names:
            raise CallerRefusedError(403, f"{caller} may not call here: its name is not among this pod's callers")
        return caller

    async def _have_key(self, name: str) -> None:
        """Whose key is known waits for nobody: while the API server hangs, a stranger's token that names an unknown key
        must not shut the others out."""
        if name in self._keys and self._since < HOURLY:
            return
        async with self._asking:
            if self._since >= HOURLY or (name not in self._keys and self._since >= SELDOM):
                await self._ask()

    @property
    def _since(self) -> float:
        return time.monotonic() - self._asked

    async def _ask(self) -> None:
        self._asked = time.monotonic()
        try:
            self._keys = parse_keys(await self._api.get(KEYS_PATH))
            self._trouble = f"{KEYS_PATH} has no key"
        except (ApiServerError, ConfigurationError) as error:
            self._trouble = str(error)
            log.warning("cannot read the keys of service accounts' tokens: %s", error)
        finally:
            self._asked = time.monotonic()  # those who waited for this answer need not ask for it again


def read_token(path: Path) -> str | None:
    """A projected token as it is now, for the pod's own calls; None where there is none, told in the log."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("cannot read this pod's token in %s: %s", path, type(error).__name__)
        return None
    return token or None
