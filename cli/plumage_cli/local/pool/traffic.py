"""The router's own status: requests per replica, hit ratios, the last decisions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import httpx

__all__ = ["RouterTraffic"]

_DECISIONS = 20  # last decisions of a status
_INTERVAL = 1.0  # seconds between two requests
_STALE = 5.0  # seconds without an answer after which the state of the directory is not known


class RouterTraffic:
    """Asks the router for its status once a second. `last` is its last answer, also while it does not answer."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.last: dict[str, Any] = {}
        self._http = http
        self._answered = 0.0  # monotonic time of the last answer
        self._task: asyncio.Task[None] | None = None

    def start(self, router: str, admin_key: str) -> None:
        """router: its base URL."""
        url = f"{router}/plumage/v1/status?decisions={_DECISIONS}"
        headers = {"Authorization": f"Bearer {admin_key}"}
        self._task = asyncio.create_task(self._poll(url, headers), name="ask router")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def view(self, *, directory_runs: bool) -> dict[str, Any]:
        """The last status. Its `directory` is Unknown while the router does not answer or the directory is down."""
        stale = time.monotonic() - self._answered > _STALE
        return {**self.last, "directory": "Unknown"} if self.last and (stale or not directory_runs) else self.last

    async def _poll(self, url: str, headers: dict[str, str]) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                reply = await self._http.get(url, headers=headers, timeout=1.0)
                if reply.is_success:
                    self.last, self._answered = reply.json(), time.monotonic()
            await asyncio.sleep(_INTERVAL)
