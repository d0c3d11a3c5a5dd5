"""The operator's cache of its cluster: no older version replaces a newer one, and unread fields are dropped."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import pod_object, pool_object

from plumage.cluster import POOL_LABEL, gateway_labels_of
from plumage_operator.cache.store import Store

POOL = ("default", "chat")
FRONT = ("default", "front")


def versioned(thing: dict[str, Any], version: int) -> dict[str, Any]:
    return {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(version)}}


def test_put_returns_the_pool_only_for_a_change() -> None:
    store = Store()
    assert store.put(versioned(pool_object(), 5)) == POOL
    assert store.put(versioned(pool_object(), 5)) is None
    assert store.put(versioned(pool_object(), 4)) is None
    assert store.put(versioned(pod_object(), 6)) == POOL
    assert store.pools() == [POOL]


def test_answer_that_overtook_the_watch_is_kept() -> None:
    store = Store()
    newer = versioned(pool_object(generation=2), 9)
    store.put(newer)
    store.put(versioned(pool_object(generation=1), 8))
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.pool["metadata"]["generation"] == 2


def test_pods_are_kept_without_unread_fields() -> None:
    store = Store()
    store.put(pool_object())
    pod = pod_object(podIP="10.0.0.1", hostIP="10.9.9.9")
    pod["spec"] = {"nodeName": "node-1", "containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    store.put(pod)
    observed = store.observe(POOL)
    assert observed is not None
    (kept,) = observed.pods
    assert kept["status"]["podIP"] == "10.0.0.1"
    assert kept["spec"] == {"nodeName": "node-1"}
    assert "managedFields" not in kept["metadata"]
    assert "hostIP" not in kept["status"]


def test_deleted_objects_are_removed() -> None:
    store = Store()
    store.put(pool_object())
    store.put(pod_object())
    assert store.remove(pod_object()) == POOL
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.pods == ()
    store.remove(pool_object())
    assert store.observe(POOL) is None
    assert store.put(pool_object()) == POOL  # one of the same name may follow


def labelled(pod: dict[str, Any], pool: str | None, version: int) -> dict[str, Any]:
    labels = {POOL_LABEL: pool} if pool else {}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels, "resourceVersion": str(version)}}


def pods_of(store: Store, pool: tuple[str, str]) -> list[str]:
    observed = store.observe(pool)
    assert observed is not None
    return [pod["metadata"]["name"] for pod in observed.pods]


def test_isolated_pod_leaves_its_pool() -> None:
    store = Store()
    store.put(pool_object())
    store.put(labelled(pod_object(), "chat", 5))
    isolated = labelled(pod_object(), None, 6)
    assert store.owner(isolated) == ("InferencePool", *POOL)
    assert store.put(isolated) is None
    assert store.owner(isolated) is None
    assert pods_of(store, POOL) == []
    assert store.remove(labelled(pod_object(), None, 7)) is None
    assert store.versions("Pod") == {}


def test_deleted_pod_leaves_its_pool_with_any_labels() -> None:
    store = Store()
    store.put(pool_object())
    store.put(labelled(pod_object(), "chat", 5))
    assert store.remove(labelled(pod_object(), None, 7)) == POOL
    assert pods_of(store, POOL) == []


def test_relabelled_pod_moves_to_the_other_pool() -> None:
    store = Store()
    store.put(pool_object())
    store.put(pool_object(name="other"))
    store.put(labelled(pod_object(), "chat", 5))
    assert store.put(labelled(pod_object(), "other", 6)) == ("default", "other")
    assert (pods_of(store, POOL), pods_of(store, ("default", "other"))) == ([], ["chat-engine-0"])
    assert store.forget("Pod", {("default", "chat-engine-0")}) == {("default", "other")}
    assert pods_of(store, ("default", "other")) == []


def test_lost_children_are_kept_while_their_owner_exists() -> None:
    store = Store()
    service = {"kind": "Service", "metadata": {"namespace": "default", "name": "s", "labels": {POOL_LABEL: "chat"}}}

    def lost() -> frozenset[tuple[str, str]]:
        observed = store.observe(POOL)
        assert observed is not None
        return observed.lost_children

    store.put(pool_object())
    store.put(service)
    store.put(pod_object())
    assert lost() == frozenset()
    store.remove(service)
    store.remove(pod_object())
    assert lost() == {("Service", "s")}, "pods come and go"
    store.put(service)
    assert lost() == frozenset()
    store.remove(service)
    store.remove(pool_object())
    store.put(pool_object())
    assert lost() == frozenset()
    store.put(service)
    store.remove(pool_object())
    store.remove(service)
    store.put(pool_object())
    assert lost() == frozenset(), "it was deleted with its pool"


@pytest.mark.parametrize("again", [False, True], ids=["its deletion was not reported", "its deletion was reported"])
def test_lost_children_of_an_earlier_pool_are_dropped(again: bool) -> None:
    store = Store()
    owner = {"uid": "pool-uid", "controller": True}
    service = {"kind": "Service", "metadata": {"namespace": "default", "name": "s", "labels": {POOL_LABEL: "chat"}}}
    service["metadata"]["ownerReferences"] = [owner]
    store.put(pool_object())
    store.put(service)
    if again:
        store.remove(pool_object())
    store.put(pool_object(uid="another-uid", resourceVersion="9"))
    store.remove(service)
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.lost_children == frozenset()
    service["metadata"]["ownerReferences"] = [{**owner, "uid": "another-uid"}]
    store.put(service)
    store.remove(service)
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.lost_children == {("Service", "s")}


def test_isolated_router_leaves_its_gateway() -> None:
    store = Store()
    store.put({"kind": "InferenceGateway", "metadata": {"namespace": "default", "name": "front"}})
    router = pod_object(name="front-gateway-0")
    router["metadata"]["labels"] = gateway_labels_of("front")
    store.put(versioned(router, 5))
    isolated = labelled(router, None, 6)
    assert store.owner(isolated) == ("InferenceGateway", *FRONT)
    store.put(isolated)
    gateway = store.observe_gateway(FRONT)
    assert gateway is not None
    assert gateway.own.pods == ()


def test_late_deletion_does_not_remove_the_recreated_object() -> None:
    store = Store()
    store.put(pool_object())
    store.put(versioned(pod_object(), 5))
    store.put(versioned(pod_object(), 9))  # an answer to our own request, which overtook the watch
    assert store.remove(versioned(pod_object(), 8)) is None
    assert pods_of(store, POOL) == ["chat-engine-0"]
    assert store.remove(versioned(pod_object(), 9)) == POOL
    assert pods_of(store, POOL) == []


def test_pool_and_its_gateway_find_each_other() -> None:
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
    assert [store.put(router), store.put(service)] == [None, None], "they belong to no pool"

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


def test_inference_pool_of_the_gateway_api_is_a_child() -> None:
    store = Store()
    store.put(versioned(pool_object(), 5))
    metadata = {"name": "chat", "namespace": "default", "labels": {POOL_LABEL: "chat"}}
    published = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata}
    assert store.put(versioned(published, 6)) == POOL
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.pool["apiVersion"] == "inference.plumage.dev/v1alpha1"
    assert list(observed.children) == [("InferencePool.inference.networking.k8s.io", "chat")]
    assert store.remove(versioned(published, 7)) == POOL
    assert store.pools() == [POOL]
    theirs = {**published, "metadata": {**metadata, "name": "theirs", "labels": {}}}
    assert store.put(versioned(theirs, 8)) is None
    assert store.pools() == [POOL]


def test_conditions_of_all_pools_and_gateways_are_listed() -> None:
    store = Store()
    ready = {"type": "Ready", "status": "False", "reason": "NoGpu", "message": "wait", "observedGeneration": 1}
    published = {"type": "Published", "status": "True", "reason": "ParentsAccepted"}
    store.put(versioned({**pool_object(), "status": {"conditions": [ready, published]}}, 5))
    front = {"kind": "InferenceGateway", "metadata": {"namespace": "default", "name": "front", "resourceVersion": "6"}}
    store.put({**front, "status": {"conditions": [ready]}})
    new = pool_object()
    store.put(versioned({**new, "metadata": {**new["metadata"], "name": "new"}, "status": {}}, 7))
    assert list(store.conditions()) == [
        ("InferencePool", "default", "chat", "Ready", "False", "NoGpu"),
        ("InferencePool", "default", "chat", "Published", "True", "ParentsAccepted"),
        ("InferenceGateway", "default", "front", "Ready", "False", "NoGpu"),
    ]
