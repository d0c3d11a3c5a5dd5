"""The autoscaling loop: polls each pool's pods on schedule, decides, and queues the pool when the decision changes.

Only the active operator has an `AutoscalingLoop`, and only one. `decision` may be called at any time, and answers from
the last reports. A round polls all pools at once, bounded by the client, and takes a few seconds at most. A pool whose
poll fails is logged and does not disturb the others.
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
from plumage_operator.autoscaling.poll_schedule import ASLEEP_INTERVAL, INTERVAL, PollSchedule
from plumage_operator.autoscaling.pool_load import PodReports, ReportWindow
from plumage_operator.autoscaling.report_client import FleetClient, PodBackoff
from plumage_operator.autoscaling.scaler import PoolScaler
from plumage_operator.cache.store import PoolKey
from plumage_operator.observed import Observed, ScalingDecision, meta

__all__ = ["AutoscalingLoop"]

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Pools that are polled at once.

Each holds all its objects meanwhile: 150 MB for a thousand. The client has no more requests in flight than this, so
more pools would only wait.
"""


class AutoscalingLoop:
    """pools: the present pools. observe: reads one; None if it is gone. changed: called with the key of a pool whose
    decision changed.
    """

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
        self._schedule = PollSchedule(interval)
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def scalers(self) -> Mapping[PoolKey, PoolScaler]:
        """The scaler of each pool, for its metrics."""
        return self._scalers

    def decision(self, key: PoolKey, observed: Observed) -> ScalingDecision | None:
        """The present decision on a pool; None while there is none."""
        scaler = self._scalers.get(key)
        try:
            return scaler.decision(observed) if scaler is not None and scaler.uid == _uid(observed) else None
        except ManifestError:
            return None  # the plan reports what is wrong with it

    def requested(self, key: PoolKey) -> None:
        """Another scaler requested the pool's metrics, and needs them fresh."""
        self._schedule.requested(key, self._clock())

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(min(ASLEEP_INTERVAL, self._interval))

    async def round(self) -> None:
        """Polls each pool that is due."""
        pools, now = set(self._pools()), self._clock()
        for key in self._scalers.keys() - pools:
            del self._scalers[key]
        self._schedule.retain(pools)
        await asyncio.gather(*(self._poll(key, now) for key in pools if self._schedule.due(key, now)))

    async def _poll(self, key: PoolKey, now: float) -> None:
        self._schedule.start(key, now)
        try:
            async with self._room:
                observed = self._observe(key)
                if observed is not None:
                    await self._decide(key, observed, now)
        except ManifestError:
            return  # the plan reports what is wrong with it
        except Exception:
            log.exception("the autoscaler could not poll pool %s/%s; it retries in %g s", *key, self._interval)

    async def _decide(self, key: PoolKey, observed: Observed, now: float) -> None:
        scaler = self._scalers.get(key)
        if scaler is None or scaler.uid != _uid(observed):  # another pool had this name
            scaler = self._scalers[key] = PoolScaler(_uid(observed))
        pods = scaler.pods(observed)
        spec = scaler.pool(observed).spec
        autoscaled, external = spec.autoscaling is not None, spec.engine.external is not None
        asleep = not pods.engines and not external
        self._schedule.record(key, scaled=autoscaled or external, asleep=asleep)
        await self._request_all(pods, scaler.reports, now)
        changing = autoscaled or external or scaler.lacks_adapters(observed, pods)
        self._schedule.record(key, scaled=changing, asleep=asleep)
        observed = self._observe(key) or observed  # polling took time
        if scaler.uid != _uid(observed):
            return
        scaler.decide(observed, pods, self._clock())
        notable = _notable(scaler.decision(observed))
        if notable != scaler.last_notable:
            scaler.last_notable = notable
            self._changed(key)

    async def _request_all(self, pods: PoolPods, reports: PodReports, now: float) -> None:
        requests = []
        for pod in pods.engines:
            agent = partial(_take_agent, reports.agents.setdefault(pod.name, ReportWindow()), now)
            requests.append(self._request(pod, agent, reports))
        for pod in pods.routers:
            router = partial(_take_router, reports.routers.setdefault(pod.name, ReportWindow()), now)
            requests.append(self._request(pod, router, reports))
        await asyncio.gather(*requests)

    async def _request(self, pod: ScaledPod, take: Callable[[bytes], None], reports: PodReports) -> None:
        if pod.url is not None:
            await self._client.fetch(pod.url, take, reports.backoffs.setdefault(pod.name, PodBackoff()))


def _take_agent(window: ReportWindow[AgentReport], now: float, data: bytes) -> None:
    window.add(read_agent_report(data), now)


def _take_router(window: ReportWindow[RouterReport], now: float, data: bytes) -> None:
    window.add(read_router_report(data), now)


def _uid(observed: Observed) -> str:
    return str(meta(observed.pool).get("uid", ""))


def _notable(decision: ScalingDecision | None) -> object:
    """The part of a decision that is worth a reconcile; its numbers change all the time."""
    if decision is None:
        return None
    fields = decision.fields
    shown = [fields.get(name) for name in ("hitRatioPercent", "adapters", "replicas", "readyReplicas")]
    return decision.desired, decision.reason, *shown, bool(decision.deletion_costs)
