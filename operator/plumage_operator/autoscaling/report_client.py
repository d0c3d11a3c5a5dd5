"""Asks routers and agents for their reports, with a bound on how many at once for all pools together.

A pod that does not answer is asked less often (`PodBackoff`): pods behind a wrong NetworkPolicy must not keep the
operator busy with waiting. No answer is larger than `MAX_BYTES`, and none takes longer than `TIMEOUT`. Redirects are
not followed, because the token would go to their target.

No certificate is verified: it names the Service and not the pod, and the operator may read no Secret. The API server
names the pods' addresses, as it does for pods without TLS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

import aiohttp

from plumage.backoff import delay
from plumage.cluster import TOKEN_FOLDER
from plumage.errors import ConfigurationError
from plumage_operator.observability.logs import cause

__all__ = ["AT_ONCE", "LONGEST", "MAX_BYTES", "TIMEOUT", "FleetClient", "PodBackoff"]

log = logging.getLogger(__name__)

AT_ONCE: Final = 64

MAX_BYTES: Final = 4 << 20
"""A router's report of 1,000 replicas has 300 KB."""

CONNECT: Final = 1.0  # seconds

TIMEOUT: Final = 3.0

TOKEN_FILE: Final = Path(TOKEN_FOLDER) / "token"


class FleetClient:
    """Needs a running event loop; call `close`.

    token_file: the operator's projected token, read at each request, because the kubelet renews it.
    clock: seconds, for backoffs.
    """

    def __init__(self, token_file: Path = TOKEN_FILE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._token_file = token_file
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT, connect=CONNECT),
            connector=aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=30.0, ssl=False),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def fetch(self, url: str, take: Callable[[bytes], None], backoff: PodBackoff) -> bool:
        """Fetches a report and passes it to `take`. Returns whether that worked.

        `take` raises ConfigurationError for an invalid report. The second failure in a row is logged, and no further
        one.
        backoff: of the pod; it is updated here.
        """
        if self._clock() < backoff.until:
            return False
        async with self._room:
            try:
                take(await self._get(url))
            except (aiohttp.ClientError, TimeoutError, OSError, ConfigurationError) as error:
                self._failed(url, backoff, error)
                return False
        if backoff.succeeded():
            log.info("%s answers again", url)
        return True

    async def _get(self, url: str) -> bytes:
        headers = {"Authorization": f"Bearer {token}"} if (token := self._token()) else {}
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ConfigurationError(f"it answers {answer.status}{_HINTS.get(answer.status, '')}")
            parts, size = [], 0
            async for part in answer.content.iter_any():
                size += len(part)
                if size > MAX_BYTES:
                    raise ConfigurationError(f"its report is larger than {MAX_BYTES} bytes")
                parts.append(part)
            return b"".join(parts)

    def _token(self) -> str | None:
        try:
            return self._token_file.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def _failed(self, url: str, backoff: PodBackoff, error: BaseException) -> None:
        backoff.failed(self._clock())
        if backoff.failures == 2:
            reason = str(error) or type(error).__name__
            log.warning("no report from %s: %s", url, reason, extra=cause("report", type(error).__name__))


_HINTS: Final = {
    401: ": it does not accept the operator's token (check its projected volume, and the clocks)",
    403: ": the operator's service account is not among its callers",
    404: ": its version has no such route",
}

LONGEST: Final = 120.0

_FIRST_WAIT: Final = 15.0

_EARLY: Final = 4.0  # seconds; an answer takes less than three, and the round after fifteen must not be missed for that


@dataclass(slots=True)
class PodBackoff:
    """How long to leave a failing pod alone: longer each time, up to `LONGEST` seconds.

    It is kept with the pod's reports and dropped with them: another pod with the same address is another pod. failures:
    in a row. until: when to poll again, by the caller's clock.
    """

    failures: int = 0
    until: float = -inf

    def failed(self, now: float) -> None:
        """now: when it failed, not when its round started: a round of many pods takes a while."""
        self.failures += 1
        self.until = now + delay(self.failures, _FIRST_WAIT, LONGEST) - _EARLY

    def succeeded(self) -> bool:
        """The pod answered. Returns whether it failed before."""
        failed, self.failures, self.until = self.failures > 0, 0, -inf
        return failed
