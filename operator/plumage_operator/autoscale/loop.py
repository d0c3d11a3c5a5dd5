"""The loop: every `INTERVAL` seconds each pool's pods are asked and a decision is made; whoever plans is told of news.

Contract: one `Autoscaling` in the operator, and only in the active one. `word` is asked by whoever observes a pool, at
any time, and answers from what is known. A round asks all pools at once (the client bounds it) and takes a few seconds
at most; a pool whose round fails is told in the log and does not disturb the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from plumage.errors import ManifestError
from plumage.fleet_report import AgentReport, RouterReport, read_agent_report, read_router_report
from plumage_operator.autoscale.client import FleetClient
from plumage_operator.autoscale.figures import Reports
from plumage_operator.autoscale.pods import PoolPods
from plumage_operator.autoscale.scaler import PoolScaler
from plumage_operator.autoscale.window import Window
from plumage_operator.observed import Observed, Scaling
from plumage_operator.store import PoolKey

__all__ = ["INTERVAL", "SELDOM", "WAKING", "Autoscaling"]

log = logging.getLogger(__name__)

INTERVAL: Final = 15.0
"""Seconds, as Kubernetes' HorizontalPodAutoscaler; the operator's options may say less."""
WAKING: Final = 2.0
"""Seconds between looks at a pool without replicas: its requests wait."""
SELDOM: Final = 60.0
"""Seconds between looks at a pool that is not autoscaled: its status shows a hit ratio, and `kubectl scale` removes the
coldest replica."""
_AT_ONCE: Final = 64
"""Pools whose pods are asked at once. Each holds all that is known of it meanwhile, of a thousand 150 MB; the client
asks no more pods than that at once, so more pools would only wait."""
_EARLY = 0.5  # seconds; what a round may come too soon and still be on time


class Autoscaling:
    """pools: those there are now. observe: one of them as it is read now, None if it is gone. changed: called with a
    pool's key when its word is another."""

    def __init__(
        self,
        client: FleetClient,
        pools: Callable[[], Iterable[PoolKey]],
        observe: Callable[[PoolKey], Observed | None],
        changed: Callable[[PoolKey], None],
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pools = pools
        self._observe = observe
        self._changed = changed
        self._interval = interval
        self._clock = clock
        self._scalers: dict[PoolKey, PoolScaler] = {}
        self._next: dict[PoolKey, float] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def scalers(self) -> Mapping[PoolKey, PoolScaler]:
        """What is known of each pool, for whoever serves it as metrics."""
        return self._scalers

    def word(self, key: PoolKey, observed: Observed) -> Scaling | None:
        """What it says of a pool, for the plan that is made now; None while it has nothing to say."""
        scaler = self._scalers.get(key)
        try:
            return None if scaler is None else scaler.word(observed)
        except ManifestError:
            return None  # the plan tells what is wrong with it

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(min(WAKING, self._interval))

    async def round(self) -> None:
        """One look at each pool that is due."""
        pools, now = set(self._pools()), self._clock()
        for key in self._scalers.keys() - pools:
            del self._scalers[key]
            self._next.pop(key, None)
        await asyncio.gather(*(self._look(key, now) for key in pools if now >= self._next.get(key, now)))

    async def _look(self, key: PoolKey, now: float) -> None:
        self._next[key] = now + self._interval - _EARLY
        try:
            async with self._room:
                observed = self._observe(key)
                if observed is not None:
                    await self._look_at(key, observed, now)
        except ManifestError:
            return  # the plan tells what is wrong with it
        except Exception:
            log.exception("the autoscaler could not look at pool %s/%s; it looks again in %g s", *key, self._interval)

    async def _look_at(self, key: PoolKey, observed: Observed, now: float) -> None:
        scaler = self._scalers.setdefault(key, PoolScaler())
        pods = scaler.pods(observed)
        autoscaled = scaler.pool(observed).spec.autoscaling is not None
        if not autoscaled:
            self._next[key] = now + max(SELDOM, self._interval) - _EARLY
        elif not pods.engines:
            self._next[key] = now + min(WAKING, self._interval) - _EARLY
        await self._ask(pods, scaler.reports, now)
        observed = self._observe(key) or observed  # asking took time
        scaler.decide(observed, pods, self._clock())
        news = _gist(scaler.word(observed))
        if news != scaler.told:
            scaler.told = news
            self._changed(key)

    async def _ask(self, pods: PoolPods, reports: Reports, now: float) -> None:
        asked = []
        for pod in pods.engines:
            if pod.url is not None:
                agent = partial(_take_agent, reports.agents.setdefault(pod.name, Window()), now)
                asked.append(self._client.ask(pod.url, agent, now))
        for pod in pods.routers:
            if pod.url is not None:
                router = partial(_take_router, reports.routers.setdefault(pod.name, Window()), now)
                asked.append(self._client.ask(pod.url, router, now))
        await asyncio.gather(*asked)


def _take_agent(window: Window[AgentReport], now: float, data: bytes) -> None:
    window.add(read_agent_report(data), now)


def _take_router(window: Window[RouterReport], now: float, data: bytes) -> None:
    window.add(read_router_report(data), now)


def _gist(word: Scaling | None) -> object:
    """What of a word is worth a plan; its figures move all the time."""
    if word is None:
        return None
    return word.desired, word.reason, word.fields.get("hitRatioPercent"), bool(word.deletion_costs)
