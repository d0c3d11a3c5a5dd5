"""The two parts of the measurement: a cluster without an operator, and one with it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from plumage_bench.benches.operator_scale import audit, crowd, objects
from plumage_bench.benches.operator_scale.checkout import Cluster
from plumage_bench.benches.operator_scale.crowd import Course, TooSlowError
from plumage_bench.benches.operator_scale.process import Figures, peak_megabytes, processor_seconds, read_figures
from plumage_operator.kube.client import KubeClient

__all__ = ["Bare", "Idle", "Operated", "bare", "operated"]

_WITHIN: Final = 1_800.0  # seconds for all objects to be as expected
_START: Final = 300.0
_QUIET: Final = 5.0  # seconds without a reconcile, after which the operator counts as idle
_NAME: Final = "operator-0"
_AWAITED: Final = ("Deployment", "InferencePool")
Advance = Callable[[int], None]
Thing = dict[str, Any]


@dataclass(slots=True)
class Idle:
    """A time in which nothing happens. processor: CPU seconds of the operator."""

    seconds: float
    writes: dict[str, int]
    requests: dict[str, int]
    processor: float


@dataclass(slots=True)
class Bare:
    """Without an operator. processor: CPU seconds of each program until all had converged."""

    course: Course
    processor: dict[str, float]


@dataclass(slots=True)
class Operated:
    """peaks: MB of the first process and of the one after the restart. requests: the operator's until all had
    converged, by verb. processor: CPU seconds of each program until then."""

    course: Course
    figures: Figures
    idle: Idle
    restart: float
    peaks: tuple[float, float]
    requests: dict[str, int] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)


async def bare(cluster: Cluster, pools: int, advance: Advance, made: Callable[[int], Iterable[Thing]]) -> Bare:
    """Measures from the first applied object to the last ready pod. `made` returns the objects of each pool."""
    async with KubeClient(await crowd.administrator(cluster.server.kubeconfig)) as api:
        await crowd.create_all(api, map(_namespace, objects.NAMESPACES))
        things = [thing for number in range(pools) for thing in made(number)]
        course = await _apply(api, things, objects.is_complete, advance)
        return Bare(course, processor_seconds(cluster.pids()))


async def operated(cluster: Cluster, pools: int, idle: float, advance: Advance) -> Operated:
    """Pools with an operator: until they converge, for `idle` seconds, and with a restarted process."""
    await asyncio.to_thread(cluster.install)
    server, fleet = cluster.server, cluster.fleet
    server.processes.start("pods", [sys.executable, "-m", "plumage_bench.benches.operator_scale.pods"])
    timeout = aiohttp.ClientTimeout(5.0)
    async with (
        KubeClient(await crowd.administrator(server.kubeconfig)) as api,
        aiohttp.ClientSession(timeout=timeout) as web,
    ):
        await crowd.create_all(api, map(_namespace, objects.NAMESPACES))
        fleet.start(_NAME)
        try:
            await _until(web, fleet, lambda now: now.leading)
            began = time.time()
            course = await _apply(api, [objects.pool(number) for number in range(pools)], objects.is_settled, advance)
            requests = dict(audit.by_verb(audit.read_entries(cluster.audit), began, time.time()))
            processor = processor_seconds({**cluster.pids(), "operator": _pid(fleet)})
            figures = await _quiet(web, fleet)
            rest = await _rest(cluster, idle)
            first = peak_megabytes(_pid(fleet))
            restart = await _restart(api, web, fleet, pools)
            return Operated(course, figures, rest, restart, (first, peak_megabytes(_pid(fleet))), requests, processor)
        finally:
            if _NAME in fleet.operators:
                fleet.stop(_NAME, kill=True)


def _namespace(name: str) -> Thing:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def _apply(
    api: KubeClient, things: Sequence[Thing], holds: Callable[[Any], bool], advance: Advance
) -> Course:  # fmt: skip
    course = Course(time.monotonic())
    await crowd.create_all(api, things)
    awaited = [crowd.path(thing) for thing in things if thing["kind"] in _AWAITED]
    await crowd.until_all(api, awaited, holds, course, _WITHIN, advance)
    return course


async def _until(web: aiohttp.ClientSession, fleet: Any, holds: Callable[[Figures], bool]) -> Figures:
    """The operator's report once the condition is true."""
    end = time.monotonic() + _START
    while True:
        figures = await read_figures(web, fleet.ports[_NAME][1])
        if figures is not None and holds(figures):
            return figures
        if fleet.operators[_NAME].poll() is not None or time.monotonic() > end:
            raise TooSlowError(f"the operator ended, or is not there after {_START:.0f} s:\n{fleet.log(_NAME)[-4000:]}")
        await asyncio.sleep(0.2)


async def _quiet(web: aiohttp.ClientSession, fleet: Any) -> Figures:
    """Waits until the operator has reconciled all events."""
    looks, since = -1, time.monotonic()

    def quiet(now: Figures) -> bool:
        nonlocal looks, since
        if now.looks.count != looks or now.waiting:
            looks, since = now.looks.count, time.monotonic()
        return time.monotonic() - since > _QUIET

    return await _until(web, fleet, quiet)


async def _rest(cluster: Cluster, seconds: float) -> Idle:
    pid = {"operator": _pid(cluster.fleet)}
    began, before = time.time(), processor_seconds(pid)
    await asyncio.sleep(seconds)
    until, after = time.time(), processor_seconds(pid)
    await asyncio.sleep(1.0)  # the log is written after the answers
    entries = list(audit.read_entries(cluster.audit))
    writes, requests = audit.idle_writes(entries, began, until), audit.by_verb(entries, began, until)
    return Idle(seconds, dict(writes), dict(requests), after["operator"] - before["operator"])


async def _restart(api: KubeClient, web: aiohttp.ClientSession, fleet: Any, pools: int) -> float:
    """Kills the operator and starts it under the same name, as a kubelet does. Returns the seconds from the start of
    the new process until it has reconciled every pool and repaired what was broken meanwhile."""
    fleet.stop(_NAME, kill=True)
    lost = await _lose_a_service(api)
    began = time.monotonic()
    fleet.start(_NAME)
    await _until(web, fleet, lambda now: now.leading and now.looks.count >= pools and not now.waiting)
    while not await _is_back(api, lost):
        if time.monotonic() - began > _START:
            raise TooSlowError(f"{lost} is not repaired after {_START:.0f} s")
        await asyncio.sleep(0.1)
    return time.monotonic() - began


async def _lose_a_service(api: KubeClient) -> tuple[str, str]:
    pool = objects.pool(0)["metadata"]
    name, namespace = f"{pool['name']}-router", str(pool["namespace"])
    live = await api.get("Service", namespace, name)
    assert live is not None
    await api.delete("Service", namespace, name, str(live["metadata"]["uid"]))
    return namespace, name


async def _is_back(api: KubeClient, lost: tuple[str, str]) -> bool:
    return await api.get("Service", *lost) is not None


def _pid(fleet: Any) -> int:
    pid: int = fleet.operators[_NAME].pid
    return pid
