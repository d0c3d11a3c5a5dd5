"""The loop: at its pace each pool's pods are asked and a decision is made; whoever plans is told of news.

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
from plumage_operator.autoscaling.pods import PoolPods, ScaledPod
from plumage_operator.autoscaling.poll_schedule import INTERVAL, WAKING, PollSchedule
from plumage_operator.autoscaling.pool_load import PodReports, ReportWindow
from plumage_operator.autoscaling.report_client import FleetClient, PodBackoff
from plumage_operator.autoscaling.scaler import PoolScaler
from plumage_operator.cache.store import PoolKey
from plumage_operator.observed import Observed, ScalingDecision, meta

__all__ = ["AutoscalingLoop"]

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Pools whose pods are asked at once. Each holds all that is known of it meanwhile, of a thousand 150 MB; the client
asks no more pods than that at once, so more pools would only wait."""


class AutoscalingLoop:
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
        self._pace = PollSchedule(interval)
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def scalers(self) -> Mapping[PoolKey, PoolScaler]:
        """What is known of each pool, for whoever serves it as metrics."""
        return self._scalers

    def word(self, key: PoolKey, observed: Observed) -> ScalingDecision | None:
        """What it says of a pool, for the plan that is made now; None while it has nothing to say."""
        scaler = self._scalers.get(key)
        try:
            return scaler.word(observed) if scaler is not None and scaler.uid == _uid(observed) else None
        except ManifestError:
            return None  # the plan tells what is wrong with it

    def requested(self, key: PoolKey) -> None:
        """Somebody else scales this pool by its figures, and needs them fresh."""
        self._pace.requested(key, self._clock())

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
        self._pace.retain(pools)
        await asyncio.gather(*(self._look(key, now) for key in pools if self._pace.due(key, now)))

    async def _look(self, key: PoolKey, now: float) -> None:
        self._pace.start(key, now)
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
        scaler = self._scalers.get(key)
        if scaler is None or scaler.uid != _uid(observed):  # of its namesake nothing holds
            scaler = self._scalers[key] = PoolScaler(_uid(observed))
        pods = scaler.pods(observed)
        autoscaled = scaler.pool(observed).spec.autoscaling is not None
        self._pace.record(key, scaled=autoscaled, asleep=not pods.engines)
        await self._ask(pods, scaler.reports, now)
        observed = self._observe(key) or observed  # asking took time
        if scaler.uid != _uid(observed):
            return
        scaler.decide(observed, pods, self._clock())
        news = _gist(scaler.word(observed))
        if news != scaler.told:
            scaler.told = news
            self._changed(key)

    async def _ask(self, pods: PoolPods, reports: PodReports, now: float) -> None:
        requested = []
        for pod in pods.engines:
            agent = partial(_take_agent, reports.agents.setdefault(pod.name, ReportWindow()), now)
            requested.append(self._ask_one(pod, agent, reports))
        for pod in pods.routers:
            router = partial(_take_router, reports.routers.setdefault(pod.name, ReportWindow()), now)
            requested.append(self._ask_one(pod, router, reports))
        await asyncio.gather(*requested)

    async def _ask_one(self, pod: ScaledPod, take: Callable[[bytes], None], reports: PodReports) -> None:
        if pod.url is not None:
            await self._client.ask(pod.url, take, reports.backoffs.setdefault(pod.name, PodBackoff()))


def _take_agent(window: ReportWindow[AgentReport], now: float, data: bytes) -> None:
    window.add(read_agent_report(data), now)


def _take_router(window: ReportWindow[RouterReport], now: float, data: bytes) -> None:
    window.add(read_router_report(data), now)


def _uid(observed: Observed) -> str:
    return str(meta(observed.pool).get("uid", ""))


def _gist(word: ScalingDecision | None) -> object:
    """What of a word is worth a plan; its figures move all the time."""
    if word is None:
        return None
    return word.desired, word.reason, word.fields.get("hitRatioPercent"), bool(word.deletion_costs)
