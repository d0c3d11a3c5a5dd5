"""The operator's picture of its cluster: never an older version over a newer one, nothing that nobody reads."""

from __future__ import annotations

from typing import Any

from support.operator_world import pod_object, pool_object

from plumage_operator.store import Store

POOL = ("default", "chat")


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


def test_gateways_of_a_namespace_are_known_to_its_pools() -> None:
    store = Store()
    store.put(pool_object())
    store.put({"kind": "InferenceGateway", "metadata": {"namespace": "default", "name": "front"}})
    store.put({"kind": "InferenceGateway", "metadata": {"namespace": "other", "name": "theirs"}})
    observed = store.observe(POOL)
    assert observed is not None
    assert observed.gateways == {"front"}
