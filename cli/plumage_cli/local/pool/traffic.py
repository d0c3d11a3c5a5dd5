"""What a pool's routers say of themselves: requests per replica, hit ratios, the last decisions.

The form is that of a router's status (`GET /plumage/v1/status`). Counts of several routers are added up.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import httpx

__all__ = ["RouterTraffic", "add_up"]

_DECISIONS = 20  # last decisions of a status
_HOTTEST = 10  # prefixes of a status
_INTERVAL = 1.0  # seconds between two requests
_SILENT: Final = 10.0  # seconds without an answer; a start takes a few on a busy machine
_STALE = 5.0  # seconds without an answer after which the state of the directory is not known
_OF_REPLICA: Final = ("inFlight", "routed", "finished", "failed", "abandoned", "promptTokens", "hitTokens",
                      "predictedHitTokens")  # fmt: skip
_OF_ROUTER: Final = ("waitingRequests", "unservedRequests")
_OF_TOTALS: Final = ("requests", "inFlight", "connections", "retries", "aborted", "truncated", "errors", "promptTokens",
                     "hitTokens", "predictedHitTokens", "prefixLostTokens")  # fmt: skip
_OF_SHADOW: Final = ("same", "other", "errors", "promptTokens", "hitTokens")
_ERRORS: Final = ("membershipError", "configError", "keysError")


class RouterTraffic:
    """Asks each router for its status once a second. `last` is what they answered last, also while one does not."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.last: dict[str, Any] = {}
        self._http = http
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._answered = 0.0  # monotonic time of the last answer
        self._heard: dict[str, float] = {}  # monotonic time of each router's last answer, or of the start
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, routers: Sequence[str], admin_key: str) -> None:
        """routers: their base URLs."""
        headers = {"Authorization": f"Bearer {admin_key}"}
        self._heard = dict.fromkeys(routers, time.monotonic())
        self._tasks = [asyncio.create_task(self._poll(url, headers), name=f"ask {url}") for url in routers]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def view(self, *, directory_runs: bool) -> dict[str, Any]:
        """The last status. Its `directory` is Unknown while no router answers or the directory is down."""
        stale = time.monotonic() - self._answered > _STALE
        return {**self.last, "directory": "Unknown"} if self.last and (stale or not directory_runs) else self.last

    def silent_for(self, router: str) -> float | None:
        """Seconds since the last answer of a router; None while that is not long."""
        silence = time.monotonic() - self._heard.get(router, math.inf)
        return silence if silence > _SILENT else None

    async def _poll(self, router: str, headers: dict[str, str]) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                url = f"{router}/plumage/v1/status?decisions={_DECISIONS}"
                reply = await self._http.get(url, headers=headers, timeout=1.0)
                if reply.is_success:
                    self._statuses[router], self._answered = reply.json(), time.monotonic()
                    self._heard[router] = self._answered
                    self.last = add_up([*self._statuses.values()])
            await asyncio.sleep(_INTERVAL)


def add_up(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One status of all routers. Counts are sums; what is no count is that of the first router."""
    first = statuses[0]
    if len(statuses) == 1:
        return dict(first)
    decisions = sorted((one for status in statuses for one in status["decisions"]), key=lambda one: -one["at"])
    return {
        **first,
        **{name: sum(status[name] for status in statuses) for name in _OF_ROUTER},
        **{name: next((status[name] for status in statuses if status[name]), None) for name in _ERRORS},
        "directory": "Degraded" if any(status["directory"] == "Degraded" for status in statuses) else "Fresh",
        "replicas": [*_replicas(statuses)],
        "decisions": decisions[:_DECISIONS],
        "hottest": _hottest(statuses),
        "totals": _with_sums([status["totals"] for status in statuses], _OF_TOTALS),
        "shadow": first["shadow"] and _with_sums([one["shadow"] for one in statuses if one["shadow"]], _OF_SHADOW),
    }


def _replicas(statuses: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """The state of a replica is that of the first router which does not use it."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for status in statuses:
        for replica in status["replicas"]:
            by_id.setdefault(replica["id"], []).append(replica)
    for seen in by_id.values():
        unused = next((one for one in seen if one["state"] != "Ready" or one["why"]), seen[0])
        yield {**_with_sums(seen, _OF_REPLICA), **{name: unused[name] for name in ("state", "why", "breaker")}}


def _hottest(statuses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    prefixes: dict[str, dict[str, Any]] = {}
    for status in statuses:
        for one in status["hottest"]:
            known = prefixes.setdefault(one["chunk"], {**one, "count": 0})
            known["count"] += one["count"]
    return sorted(prefixes.values(), key=lambda one: -one["count"])[:_HOTTEST]


def _with_sums(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The first part with the sums of these counts, and the hit ratio of the sums where there is one."""
    added = {**parts[0], **{name: _sum([part[name] for part in parts]) for name in names}}
    if "hitRatio" in added:
        prompt = added["promptTokens"]
        added["hitRatio"] = round(added["hitTokens"] / prompt, 4) if prompt else None
    return added


def _sum(counts: Sequence[Any]) -> Any:
    """Numbers, or numbers by name."""
    if not isinstance(counts[0], Mapping):
        return sum(counts)
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: sum(one.get(name, 0) for one in counts) for name in names}
