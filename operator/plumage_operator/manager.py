"""Runs the whole operator in one event loop: waits for the Lease, then watches and reconciles until it is stopped.

When one of its tasks fails, when it loses the Lease or when kopf ends, the operator ends with an error. The kubelet
starts it again, and a fresh operator knows the cluster after some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import kopf

from plumage.backoff import Backoff
from plumage_operator.autoscaling import AutoscalingLoop, FleetClient
from plumage_operator.cache.relist import fill_store, keep_relisting, missing_definitions
from plumage_operator.cache.store import PoolKey, Store
from plumage_operator.cache.watch_check import WatchCheck
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.queue import QueueProgress, WorkQueue
from plumage_operator.controller.reconcile import Key, Reconciler
from plumage_operator.controller.watch import Kind, make_kopf_settings, make_registry, watched_kinds
from plumage_operator.external_metrics.json_page import add_pool_page
from plumage_operator.external_metrics.pool_metrics import pool_samples
from plumage_operator.external_metrics.server import ExternalMetricsServer
from plumage_operator.external_metrics.tls import read_front_proxy
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.credentials import load_configuration, watch_authority
from plumage_operator.kube.errors import RefusedError, UnavailableError
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.leader_election import LeaderElector
from plumage_operator.observability.health import Heartbeats, health_app, metrics_app, serve
from plumage_operator.observability.metrics import Metrics
from plumage_operator.options import Options
from plumage_operator.status.conditions import Type

__all__ = ["Manager", "steady_clock"]

log = logging.getLogger(__name__)

_LOOP = "event loop"

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0  # seconds

_REFUSALS = 5  # about half a minute; with a right missing for longer, the operator exits, and its pod shows that

_DEFINE = "apply them (kubectl apply --server-side -f crds/), or install the chart with crds.enabled=true"

_EXPORTED = frozenset((Type.READY, Type.PROGRESSING, Type.ADAPTERS_READY, Type.PUBLISHED, Type.SCALING, Type.PAUSED))
"""Conditions for alerts. Ready repeats the first of all others that is false."""

_PULSE = 5.0  # seconds between two beats


class Manager:
    """One process of the operator."""

    def __init__(self, options: Options, configuration: Any = None) -> None:
        self._options = options
        self._configuration = configuration
        self.store = Store()
        self.queue: WorkQueue[Key] = WorkQueue(time.monotonic, random.random)
        self.metrics = Metrics()
        self.heartbeats = Heartbeats(time.monotonic)
        self.not_ready_reason = ""  # why the operator is not ready; empty while it is
        self._steady = steady_clock()  # one clock for all reports, whose ages are compared

    async def run(self, stopped: asyncio.Event) -> None:
        """Runs until `stopped` is set. Any other end is an exception."""
        configuration = self._configuration or await load_configuration()
        await _first_of([watch_authority(configuration.ssl_ca_cert), self._run(configuration, stopped)])

    async def _run(self, configuration: Any, stopped: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(KubeClient(configuration))
            client = FleetClient()
            stack.push_async_callback(client.close)
            autoscaling = self._autoscaling(client)
            await self._serve(stack, autoscaling)
            self.heartbeats.expect(_LOOP, 60.0)
            elector = self._elector(api)
            if not await _until(stopped, elector.acquire(lambda: self.heartbeats.beat(_LOOP))):
                return
            stack.push_async_callback(elector.release)
            log.info("active: watching %s", ", ".join(self._options.namespaces) or "the whole cluster")
            self.metrics.leading = True
            await _until(stopped, self._run_all(api, elector, autoscaling, stopped))

    def _autoscaling(self, client: FleetClient) -> AutoscalingLoop:
        pools, observe, interval = self.store.pools, self.store.observe, float(self._options.autoscale_seconds)
        return AutoscalingLoop(client, pools, observe, self._changed, interval=interval, clock=self._steady)

    def _elector(self, api: KubeClient) -> LeaderElector:
        options = self._options
        return LeaderElector(api, options.config.namespace, options.lease, options.identity, time.monotonic)

    async def _serve(self, stack: AsyncExitStack, autoscaling: AutoscalingLoop) -> None:
        metrics = metrics_app(self._page)
        add_pool_page(
            metrics, lambda: pool_samples(autoscaling.scalers), requested=autoscaling.requested, clock=self._steady
        )
        for app, port in (
            (health_app(self.heartbeats, lambda: self.not_ready_reason), self._options.health_port),
            (metrics, self._options.metrics_port),
        ):
            stack.push_async_callback((await serve(app, port)).cleanup)

    def _page(self) -> str:
        return self.metrics.page(
            pools=len(self.store.pools()),
            waiting=self.queue.waiting,
            oldest=self.queue.oldest,
            conditions=[one for one in self.store.conditions() if one[3] in _EXPORTED],
        )

    async def _run_all(
        self, api: KubeClient, elector: LeaderElector, autoscaling: AutoscalingLoop, stopped: asyncio.Event
    ) -> None:
        """Runs all tasks of the active operator, until the first of them ends."""
        options, kinds = self._options, watched_kinds(self._options.integrations)
        recorder = EventRecorder(api, time.time, options.identity)
        reconciler = Reconciler(
            self.store,
            self.queue,
            self._warning_events(api),
            Performer(api, recorder, self.store),
            options.config,
            self.metrics,
            scaling=autoscaling.decision,
        )
        watch_check = WatchCheck(api, self.store, self.heartbeats, options.namespaces, self._changed)
        await _first_of([elector.hold(), self._fill(api, kinds)])
        tasks: list[Coroutine[Any, Any, None]] = [
            elector.hold(), self._run_kopf(stopped, kinds), watch_check.run(), autoscaling.run(), self._pulse(),
            keep_relisting(api, self.store, kinds, options.namespaces, self._changed),
        ]  # fmt: skip
        tasks += [reconciler.work() for _ in range(options.workers)]
        if options.external_port is not None:
            external = ExternalMetricsServer(
                lambda: pool_samples(autoscaling.scalers),
                lambda: read_front_proxy(api),
                Path(options.external_tls),
                port=options.external_port,
                requested=autoscaling.requested,
                clock=self._steady,
                expires=self._certificate_expires,
            )
            tasks.append(external.run())
        await _first_of(tasks)

    def _certificate_expires(self, at: float | None) -> None:
        self.metrics.certificate_expires = at

    def _warning_events(self, api: KubeClient) -> WarningEvents:
        return WarningEvents(api, time.monotonic, lambda namespace, pod: self.store.version("Pod", namespace, pod) >= 0)

    def _changed(self, pool: PoolKey) -> None:
        self.queue.add(("InferencePool", *pool))

    async def _pulse(self) -> None:
        """Beats for the event loop, and for the queue while it makes progress."""
        progress = QueueProgress(self.queue, self.heartbeats)
        while True:
            self.heartbeats.beat(_LOOP)
            progress.beat()
            await asyncio.sleep(_PULSE)

    async def _fill(self, api: KubeClient, kinds: tuple[Kind, ...]) -> None:
        """Fills the cache before the first decision.

        It retries while the API server is down, and a few times when it refuses: just after its start, it refuses what
        roles allow.
        """
        backoff, refusals = Backoff(None, _FIRST_WAIT, _LONGEST_WAIT), 0
        while True:
            try:
                await self._wait_for_definitions(api)
                await fill_store(api, self.store, kinds, self._options.namespaces)
                break
            except (RefusedError, UnavailableError) as error:
                refusals += isinstance(error, RefusedError)
                if refusals > _REFUSALS:
                    raise
                wait = backoff.next()
                log.warning("can't fill the cache, retrying in %g s: %s", wait, error)
                self.heartbeats.beat(_LOOP)
                await asyncio.sleep(wait)
        for pool in self.store.pools():
            self._changed(pool)

    async def _wait_for_definitions(self, api: KubeClient) -> None:
        """Waits until the cluster has Plumage's definitions; meanwhile the operator is not ready.

        Without them a watch sees nothing: the operator would look healthy and do nothing.
        """
        backoff = Backoff(None, _FIRST_WAIT, _LONGEST_WAIT)
        while missing := await missing_definitions(api, self._options.namespaces):
            wait = backoff.next()
            self.not_ready_reason = f"the cluster has no definition of {' and '.join(missing)}: {_DEFINE}"
            log.error("%s; retrying in %g s", self.not_ready_reason, wait)
            self.heartbeats.beat(_LOOP)
            await asyncio.sleep(wait)
        self.not_ready_reason = ""

    async def _run_kopf(self, stopped: asyncio.Event, kinds: tuple[Kind, ...]) -> None:
        """kopf handles the signals itself. Without a signal it ends only with an error."""
        options = self._options
        await kopf.operator(
            registry=make_registry(self.store, self.queue, self.metrics, kinds),
            settings=make_kopf_settings(kinds),
            standalone=True,
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
        )
        stopped.set()
        await asyncio.Event().wait()


async def _until(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` ended by itself before `stopped` was set. Raises what it raises."""
    task, stop = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        await _end((task, stop))


async def _first_of(works: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all until the first of them ends. Raises what it raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _end(tasks)


async def _end(tasks: Any) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def steady_clock(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """A clock for this process: seconds since 1970 that never jump.

    It reads the machine's clock once and continues by the monotonic clock. It decides when a pool is polled next and
    how old a report is. With the plain clock, a correction of an hour backwards would stop all polls for an hour, and
    one forwards would make every report stale.
    """
    began = wall() - monotonic()
    return lambda: began + monotonic()
