"""Objects deleted without a watch event are found, and present ones stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage.cluster import POOL_LABEL
from plumage_operator.cache.relist import relist
from plumage_operator.cache.store import Store
from plumage_operator.kube.errors import GoneError

_SERVICES = (("", "v1", "services"),)
_CHAT = ("default", "chat")


def thing(kind: str, name: str, version: int, pool: str = "chat") -> dict[str, Any]:
    labels = {POOL_LABEL: pool}
    metadata = {"namespace": "default", "name": name, "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": metadata}


def published(name: str, version: int) -> dict[str, Any]:
    """The Gateway API's kind of the same name and plural."""
    return {**thing("InferencePool", name, version), "apiVersion": "inference.networking.k8s.io/v1"}


class Cluster:
    """An API server. meanwhile: called while it answers."""

    def __init__(self, *things: dict[str, Any], meanwhile: Callable[[], object] = lambda: None) -> None:
        self.things = things
        self.meanwhile = meanwhile

    async def list_versions(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Any]:
        theirs = api_version.startswith("inference.networking.k8s.io/")
        listed = [one for one in self.things if f"{one['kind'].lower()}s" == plural and ("apiVersion" in one) is theirs]
        self.meanwhile()
        return listed


def holding(*things: dict[str, Any]) -> Store:
    store = Store()
    for one in things:
        store.put(one)
    return store


async def test_relist_removes_a_deleted_child_and_reports_its_pool() -> None:
    pool, there, gone = thing("InferencePool", "chat", 1), thing("Service", "here", 2), thing("Service", "gone", 3)
    store = holding(pool, there, gone)
    assert await relist(Cluster(pool, there), store, _SERVICES, ()) == {_CHAT}  # type: ignore[arg-type]
    observed = store.observe(_CHAT)
    assert observed is not None
    assert list(observed.children) == [("Service", "here")]
    assert await relist(Cluster(pool, there), store, _SERVICES, ()) == set()  # type: ignore[arg-type]


async def test_relist_removes_a_deleted_pool() -> None:
    store = holding(thing("InferencePool", "chat", 1))
    assert await relist(Cluster(), store, _SERVICES, ()) == {_CHAT}  # type: ignore[arg-type]
    assert store.pools() == []


async def test_relist_keeps_objects_that_a_watch_reported_meanwhile() -> None:
    pool, first = thing("InferencePool", "chat", 1), thing("Service", "again", 2)
    store = holding(pool, first)

    def recreate() -> None:
        store.put(thing("Service", "again", 5))
        store.put(thing("Service", "new", 6))

    assert await relist(Cluster(pool, meanwhile=recreate), store, _SERVICES, ()) == set()  # type: ignore[arg-type]
    assert store.versions("Service") == {("default", "again"): 5, ("default", "new"): 6}


async def test_relist_lists_watched_namespaces_and_drops_an_unknown_kind() -> None:
    pool, service = thing("InferencePool", "chat", 1), thing("Service", "chat-router", 2)
    store = holding(pool, service)
    asked: set[str | None] = set()

    class Without(Cluster):
        async def list_versions(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Any]:
            asked.add(namespace)
            if plural == "services":
                raise GoneError("no such kind")
            return await super().list_versions(api_version, plural, namespace, selector)

    assert await relist(Without(pool), store, _SERVICES, ("default", "other")) == {_CHAT}  # type: ignore[arg-type]
    assert asked == {"default", "other"}
    assert store.versions("Service") == {}


async def test_pools_and_published_pools_are_distinct() -> None:
    kinds = (("inference.networking.k8s.io", "v1", "inferencepools"),)
    pool, child = thing("InferencePool", "chat", 1), published("chat", 2)
    store = holding(pool, child)
    assert await relist(Cluster(pool, child), store, kinds, ()) == set()  # type: ignore[arg-type]
    assert await relist(Cluster(pool), store, kinds, ()) == {_CHAT}  # type: ignore[arg-type]
    observed = store.observe(_CHAT)
    assert observed is not None
    assert (observed.pool["metadata"]["resourceVersion"], observed.children) == ("1", {})
    store.put(child)
    assert await relist(Cluster(child), store, kinds, ()) == {_CHAT}  # type: ignore[arg-type]
    assert store.pools() == []
