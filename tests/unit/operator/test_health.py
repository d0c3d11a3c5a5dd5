"""A silent loop fails the probe; an unreachable API server does not."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from plumage_operator.cache.store import Store
from plumage_operator.cache.watch_check import HEARTBEAT, WatchCheck
from plumage_operator.controller.queue import QueueProgress, WorkQueue
from plumage_operator.kube.errors import UnavailableError
from plumage_operator.observability.health import Heartbeats, health_app


class Cluster:
    """An API server that knows one object."""

    def __init__(self, plural: str = "inferencepools") -> None:
        self.plural = plural
        self.version = 5
        self.away = False

    async def list_versions(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Any]:
        if self.away:
            raise UnavailableError("away")
        return [pool(self.version)] if plural == self.plural else []


def pool(version: int, kind: str = "InferencePool") -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "chat", "resourceVersion": str(version)}
    return {"kind": kind, "metadata": metadata}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def probe(heartbeats: Heartbeats) -> tuple[int, str]:
    async with TestClient(TestServer(health_app(heartbeats))) as client:
        answer = await client.get("/healthz")
        return answer.status, await answer.text()


async def test_silence_fails_the_probe_and_names_the_loop() -> None:
    time = Time()
    heartbeats = Heartbeats(time)
    heartbeats.expect("queue", 60)
    heartbeats.expect("event loop", 60)
    time.now = 50
    heartbeats.beat("queue")
    assert await probe(heartbeats) == (200, "ok")
    time.now = 100
    status, text = await probe(heartbeats)
    assert status == 503
    assert "event loop: no heartbeat for 100 s" in text
    assert "queue" not in text


async def stale_after(cluster: Cluster, store: Store, count: int) -> list[str]:
    """Silent loops after so many checks, one a minute."""
    time = Time()
    heartbeats = Heartbeats(time)
    heartbeats.expect(HEARTBEAT, 240)
    watch_check = WatchCheck(cluster, store, heartbeats, (), lambda _: None)  # type: ignore[arg-type]
    for _ in range(count):
        time.now += 60
        await watch_check.check()
    return heartbeats.stale()


@pytest.mark.parametrize(
    ("kind", "plural"), [("InferencePool", "inferencepools"), ("Deployment", "deployments"), ("Pod", "pods")]
)
async def test_silent_watch_is_found_frozen(kind: str, plural: str) -> None:
    cluster, store = Cluster(plural), Store()
    store.put(pool(4, kind))  # the watch reported version 4, and then nothing
    assert await stale_after(cluster, store, 3) == []
    (text,) = await stale_after(cluster, store, 8)
    assert text.startswith("watches: no heartbeat")


async def test_current_watch_is_alive() -> None:
    cluster, store = Cluster(), Store()
    store.put(pool(5))
    assert await stale_after(cluster, store, 8) == []


async def test_late_watch_is_alive() -> None:
    cluster, store = Cluster(), Store()
    time = Time()
    heartbeats = Heartbeats(time)
    heartbeats.expect(HEARTBEAT, 240)
    watch_check = WatchCheck(cluster, store, heartbeats, (), lambda _: None)  # type: ignore[arg-type]
    for number in range(8):
        time.now += 60
        cluster.version = number + 10
        await watch_check.check()  # always a version behind, never the same one twice
        store.put(pool(cluster.version))
    assert heartbeats.stale() == []


async def test_unreachable_api_server_does_not_fail_the_watch() -> None:
    cluster, store = Cluster(), Store()
    cluster.away = True
    assert await stale_after(cluster, store, 8) == []


class SimulatedOperator:
    """A thousand pools, twelve workers, and the operator's pulse, all in virtual time."""

    def __init__(self) -> None:
        self.time = Time()
        self.queue: WorkQueue[int] = WorkQueue(self.time, lambda: 1.0)
        self.heartbeats = Heartbeats(self.time)
        self.progress = QueueProgress(self.queue, self.heartbeats)
        self.working: list[tuple[float, int]] = []
        for pool in range(1000):
            self.queue.add(pool)

    async def second(self, seconds: float, workers: int = 12) -> None:
        """seconds: duration of one reconcile."""
        for ends, pool in [one for one in self.working if one[0] <= self.time.now]:
            self.working.remove((ends, pool))
            self.queue.done(pool)
        while len(self.working) < workers and self.queue.oldest > 0:
            self.working.append((self.time.now + seconds, await self.queue.take()))
        self.time.now += 1
        self.progress.beat()


async def test_long_queue_that_shrinks_is_alive() -> None:
    operator = SimulatedOperator()
    while operator.queue.waiting:
        await operator.second(4.3)
        assert operator.heartbeats.stale() == []
    assert operator.time.now > 360, "longer than the oldest key may be overdue"


async def test_queue_without_progress_fails_the_probe() -> None:
    operator = SimulatedOperator()
    for _ in range(170):
        await operator.second(4.3, workers=0)
    assert operator.heartbeats.stale() == []
    for _ in range(20):
        await operator.second(4.3, workers=0)
    (text,) = operator.heartbeats.stale()
    assert text.startswith("queue: no heartbeat")


async def test_queue_with_nothing_due_is_alive() -> None:
    operator = SimulatedOperator()
    while operator.queue.waiting or operator.working:
        await operator.second(1)
    operator.queue.add(1, 1000)
    for _ in range(900):
        await operator.second(1)
    assert operator.heartbeats.stale() == []
