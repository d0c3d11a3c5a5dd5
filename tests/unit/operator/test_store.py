"""The operator's picture of its cluster: never an older version over a newer one, nothing that nobody reads."""

from __future__ import annotations

from typing import Any

from support.operator_world import pod_object, pool_object

from plumage.cluster import gateway_labels_of
from plumage_operator.store import Store

POOL = ("default", "chat")
FRONT = ("default", "front")


def versioned(thing: dict[str, Any], version: int) -> dict[str, Any]:
    return {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(version)}}


def test_news_concerns_a_pool_and_no_news_concerns_nobody() -> None:
    store = Store()
    assert store.put(versioned(pool_object(), 5)) == POOL
    assert store.put(versioned(pool_object(), 5)) is None
    assert store.put(versioned(pool_object(), 4)) is None
    assert store.put(versioned(pod_object(), 6)) == POOL
    assert store.pools() == [POOL]


def test_an_answer_that_overtook_the_watch_is_kept() -> None:
    store = Store()
    newer = versioned(pool_object(generation=2), 9)
    store.put(newer)
    store.put(versioned(pool_object(generation=1), 8))
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.pool["metadata"]["generation"] == 2


def test_pods_are_kept_without_what_nobody_reads() -> None:
    store = Store()
    store.put(pool_object())
    pod = pod_object(podIP="10.0.0.1", hostIP="10.9.9.9")
    pod["spec"] = {"containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    store.put(pod)
    observed = store.observe(POOL)
    assert observed is not None
    (kept,) = observed.pods
    assert kept["status"]["podIP"] == "10.0.0.1"
    assert "spec" not in kept
    assert "managedFields" not in kept["metadata"]
    assert "hostIP" not in kept["status"]


def test_what_is_gone_is_forgotten() -> None:
    store = Store()
    store.put(pool_object())
    store.put(pod_object())
    assert store.remove(pod_object()) == POOL
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.pods == ()
    store.remove(pool_object())
    assert store.observe(POOL) is None
    assert store.put(pool_object()) == POOL  # one of the same name may come


def test_a_pool_and_the_gateway_that_it_refers_to_know_one_another() -> None:
    store = Store()
    behind = {**pool_object(), "spec": {"router": {"gatewayRef": {"name": "front"}}}}
    store.put(behind)
    assert store.gateway_of(POOL) == FRONT
    store.put(pool_object(name="alone", resourceVersion="7"))
    store.put(pod_object())
    store.put({"kind": "InferenceGateway", "metadata": {"namespace": "default", "name": "front"}})
    store.put({"kind": "InferenceGateway", "metadata": {"namespace": "other", "name": "front"}})
    labels = gateway_labels_of("front")
    router = {"kind": "Pod", "metadata": {"namespace": "default", "name": "front-gateway-0", "labels": labels}}
    service = {"kind": "Service", "metadata": {"namespace": "default", "name": "front-gateway", "labels": labels}}
    assert [store.put(router), store.put(service)] == [None, None], "they concern no pool"

    observed, alone = store.observe(POOL), store.observe(("default", "alone"))
    assert observed is not None
    assert alone is not None
    assert observed.gateway is not None
    assert [pod["metadata"]["name"] for pod in observed.gateway_pods] == ["front-gateway-0"]
    assert alone.gateway is None
    gateway = store.observe_gateway(FRONT)
    assert gateway is not None
    assert [one.pool["metadata"]["name"] for one in gateway.attached] == ["chat"]
    assert [pod["metadata"]["name"] for pod in gateway.attached[0].pods] == ["chat-engine-0"]
    assert gateway.pools == {"chat", "alone"}
    assert list(gateway.own.children) == [("Service", "front-gateway")]
    other = store.observe_gateway(("other", "front"))
    assert other is not None
    assert other.attached == ()

    store.forget("Service", {("default", "front-gateway")})
    store.remove(behind)
    gateway = store.observe_gateway(FRONT)
    assert gateway is not None
    assert (gateway.attached, gateway.own.children) == ((), {})
    assert store.pools_of(FRONT) == []
