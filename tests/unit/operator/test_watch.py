"""Which pools and gateways are reconciled after a watch event."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import pod_object, pool_object

from plumage.cluster import POOL_LABEL, gateway_labels_of
from plumage_operator.cache.store import Store
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key
from plumage_operator.controller.watch import apply_event

CHAT, OTHER, FRONT = (
    ("InferencePool", "default", "chat"),
    ("InferencePool", "default", "other"),
    ("InferenceGateway", "default", "front"),
)


class Watch:
    """asked: the keys to reconcile since the last call."""

    def __init__(self) -> None:
        self.store = Store()
        self.queue: WorkQueue[Key] = WorkQueue(lambda: 0.0, lambda: 1.0)
        self.asked: set[Key] = set()
        self.queue.add = lambda key, after=0.0: self.asked.add(key)  # type: ignore[method-assign]

    def apply(self, thing: dict[str, Any], *, gone: bool = False) -> set[Key]:
        self.asked.clear()
        apply_event(self.store, self.queue, thing, gone=gone)
        return set(self.asked)


@pytest.fixture
def watch() -> Watch:
    """A pool that refers to a gateway."""
    watch = Watch()
    spec = {"router": {"gatewayRef": {"name": "front"}}}
    watch.apply({"kind": "InferenceGateway", "metadata": {"namespace": "default", "name": "front"}})
    assert watch.apply(pool_object(spec)) == {CHAT, FRONT}
    return watch


def pod(pool: str | None, version: int) -> dict[str, Any]:
    made = pod_object()
    made["metadata"] |= {"labels": {POOL_LABEL: pool} if pool else {}, "resourceVersion": str(version)}
    return made


def test_pod_event_reconciles_its_pool_and_gateway(watch: Watch) -> None:
    assert watch.apply(pod("chat", 1)) == {CHAT, FRONT}
    assert watch.apply(pod("chat", 1)) == set(), "no change"
    assert watch.apply(pod("chat", 2), gone=True) == {CHAT, FRONT}


def test_pod_that_leaves_its_pool_reconciles_it(watch: Watch) -> None:
    watch.apply(pod("chat", 1))
    assert watch.apply(pod("other", 2)) == {CHAT, FRONT, OTHER}
    assert watch.apply(pod(None, 3)) == {OTHER}
    assert watch.apply(pod(None, 4), gone=True) == set()


def test_child_event_reconciles_the_pool_alone(watch: Watch) -> None:
    service = {"kind": "Service", "metadata": {"namespace": "default", "name": "s", "labels": {POOL_LABEL: "chat"}}}
    assert watch.apply(service) == {CHAT}


def test_router_that_leaves_its_gateway_reconciles_it(watch: Watch) -> None:
    router = pod(None, 1)
    router["metadata"]["labels"] = gateway_labels_of("front")
    assert watch.apply(router) == {FRONT}
    assert watch.apply(pod(None, 2)) == {FRONT}


def test_inference_pool_of_the_gateway_api_reconciles_its_pool_alone(watch: Watch) -> None:
    labels = {POOL_LABEL: "chat"}
    published = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    assert watch.apply({**published, "metadata": {"namespace": "default", "name": "other", "labels": labels}}) == {CHAT}
    assert watch.apply({**published, "metadata": {"namespace": "default", "name": "chat"}}) == set()
    assert watch.store.pools() == [("default", "chat")]


def test_inference_pool_of_the_gateway_api_reconciles_pools_whose_engines_it_names(watch: Watch) -> None:
    engine = {"external": {"inferencePoolRef": {"name": "theirs"}}}
    outside = {**pool_object({"engine": engine}), "metadata": {"namespace": "default", "name": "other"}}
    watch.apply(outside)
    theirs = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    assert watch.apply({**theirs, "metadata": {"namespace": "default", "name": "theirs"}}) == {OTHER}
    assert watch.apply({**theirs, "metadata": {"namespace": "elsewhere", "name": "theirs"}}) == set()
    assert watch.apply({**theirs, "metadata": {"namespace": "default", "name": "theirs"}}, gone=True) == {OTHER}
