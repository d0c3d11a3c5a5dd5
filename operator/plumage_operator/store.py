"""The operator's picture of its cluster: what the watches told last, by pool.

Contract: a reconcile reads here and asks the API server for nothing, so that ten thousand pods cost no requests.
Objects are kept as JSON without what nobody reads (a thousand pools in a few dozen megabytes), and an older version
never replaces a newer one: answers to our own writes are put here too and may overtake the watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final

import msgspec

from plumage.cluster import GATEWAY_LABEL, POOL_LABEL, gateway_of, pool_of
from plumage_operator.observed import Attached, ChildKey, Object, Observed, ObservedGateway, key_of, meta

__all__ = ["Place", "PoolKey", "Store"]

PoolKey = tuple[str, str]
"""Namespace and name of a pool."""
Place = tuple[str, str]
"""Namespace and name of anything."""

_POD_FIELDS: Final = ("conditions", "containerStatuses", "initContainerStatuses", "message", "phase", "podIP", "reason")
_META_DROPPED: Final = ("managedFields", "selfLink", "generateName")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Store:
    """Pools, gateways, children and pods. Not safe for threads; it lives in one event loop."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, bytes] = {}
        self._gateways: dict[PoolKey, bytes] = {}
        self._owned: dict[PoolKey, dict[ChildKey, bytes]] = {}
        self._of_gateways: dict[PoolKey, dict[ChildKey, bytes]] = {}
        self._referred: dict[PoolKey, str] = {}  # the gateway of each pool that has one
        self._versions: dict[str, dict[Place, int]] = {}

    def put(self, thing: Object) -> PoolKey | None:
        """Keep an object. Answers the pool that it concerns, or None where it concerns none or is no news."""
        kind, name = key_of(thing)
        namespace, version = str(meta(thing).get("namespace", "")), _version(thing)
        known = self.version(kind, namespace, name)
        if version < known or (version == known and version > 0):
            return None
        self._versions.setdefault(kind, {})[namespace, name] = version
        if kind == "InferencePool":
            self._pools[namespace, name] = _encode(_trimmed(thing))
            self._refer((namespace, name), thing)
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways[namespace, name] = _encode(_trimmed(thing))
            return None
        labels = meta(thing).get("labels") or {}
        pool, gateway = pool_of(labels), gateway_of(labels)
        if pool is None:
            if gateway is not None:
                self._of_gateways.setdefault((namespace, gateway), {})[kind, name] = _encode(_trimmed(thing))
            return None
        self._owned.setdefault((namespace, pool), {})[kind, name] = _encode(_trimmed(thing))
        return namespace, pool

    def remove(self, thing: Object) -> PoolKey | None:
        """Forget an object. Answers the pool that it concerned."""
        kind, name = key_of(thing)
        namespace = str(meta(thing).get("namespace", ""))
        self._versions.get(kind, {}).pop((namespace, name), None)
        if kind == "InferencePool":
            self._pools.pop((namespace, name), None)
            self._referred.pop((namespace, name), None)
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways.pop((namespace, name), None)
            return None
        labels = meta(thing).get("labels") or {}
        pool, gateway = pool_of(labels), gateway_of(labels)
        _drop(self._owned if pool is not None else self._of_gateways, (namespace, pool or gateway or ""), (kind, name))
        return None if pool is None else (namespace, pool)

    def forget(self, kind: str, places: Set[Place]) -> set[PoolKey]:
        """`remove` objects of which no more is known than where they were; the pools they concerned. One pass."""
        lost = [(place, label, key[1]) for label, key, place in self._all(kind) if place in places]
        lost += [(place, POOL_LABEL, "") for place in places - {place for place, _, _ in lost}]
        told = (self.remove(_named(kind, *place, label, owner)) for place, label, owner in lost)
        return {pool for pool in told if pool}

    def held(self, kind: str) -> dict[Place, int]:
        """The versions of all objects of a kind."""
        return dict(self._versions.get(kind, {}))

    def pools(self) -> list[PoolKey]:
        """All pools there are."""
        return list(self._pools)

    def pools_of(self, gateway: PoolKey) -> list[PoolKey]:
        """The pools that refer to a gateway, be it there or not."""
        return [key for key, name in self._referred.items() if (key[0], name) == gateway]

    def gateway_of(self, pool: PoolKey) -> PoolKey | None:
        """The gateway that a pool refers to, be it there or not."""
        name = self._referred.get(pool)
        return None if name is None else (pool[0], name)

    def gateways_at(self, namespace: str) -> list[PoolKey]:
        """The gateways of a namespace."""
        return [key for key in self._gateways if key[0] == namespace]

    def observe_gateway(self, key: PoolKey) -> ObservedGateway | None:
        """A gateway with everything of its own and its pools; None where there is no such gateway."""
        gateway = self._gateways.get(key)
        if gateway is None:
            return None
        return ObservedGateway(
            own=Observed(_decode(gateway), *_parts(self._of_gateways.get(key, {}))),
            attached=tuple(
                Attached(_decode(self._pools[pool]), _pods(self._owned.get(pool, {})))
                for pool in sorted(self.pools_of(key))
            ),
            pools=frozenset(name for namespace, name in self._pools if namespace == key[0]),
        )

    def version(self, kind: str, namespace: str, name: str) -> int:
        """The resourceVersion that is kept, -1 for nothing."""
        return self._versions.get(kind, {}).get((namespace, name), -1)

    def observe(self, key: PoolKey) -> Observed | None:
        """A pool with everything of its own; None where there is no such pool."""
        pool = self._pools.get(key)
        if pool is None:
            return None
        children, pods = _parts(self._owned.get(key, {}))
        place = self.gateway_of(key)
        gateway = None if place is None else self._gateways.get(place)
        if place is None or gateway is None:
            return Observed(_decode(pool), children, pods)
        routers = _pods(self._of_gateways.get(place, {}))
        return Observed(_decode(pool), children, pods, gateway=_decode(gateway), gateway_pods=routers)

    def _refer(self, key: PoolKey, pool: Object) -> None:
        router = (pool.get("spec") or {}).get("router") or {}
        name = (router.get("gatewayRef") or {}).get("name")
        if name is None:
            self._referred.pop(key, None)
        else:
            self._referred[key] = str(name)

    def _all(self, kind: str) -> Iterator[tuple[str, PoolKey, Place]]:
        """Of all children of a kind: by which label they belong to whom, and their places."""
        for label, owned in ((POOL_LABEL, self._owned), (GATEWAY_LABEL, self._of_gateways)):
            for key, of in owned.items():
                yield from ((label, key, (key[0], name)) for had, name in of if had == kind)


def _drop(owned: dict[PoolKey, dict[ChildKey, bytes]], key: PoolKey, child: ChildKey) -> None:
    of = owned.get(key, {})
    of.pop(child, None)
    if not of:
        owned.pop(key, None)


def _parts(owned: Mapping[ChildKey, bytes]) -> tuple[dict[ChildKey, Object], tuple[Object, ...]]:
    """Children and pods."""
    return {child: _decode(text) for child, text in owned.items() if child[0] != "Pod"}, _pods(owned)


def _pods(owned: Mapping[ChildKey, bytes]) -> tuple[Object, ...]:
    return tuple(_decode(text) for child, text in sorted(owned.items()) if child[0] == "Pod")


def _named(kind: str, namespace: str, name: str, label: str, owner: str) -> Object:
    labels = {label: owner} if owner else {}
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name, "labels": labels}}


def _version(thing: Object) -> int:
    """Kubernetes lets versions of one resource be compared since 1.35; before it was so, and not promised."""
    text = str(meta(thing).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def _trimmed(thing: Object) -> dict[str, Any]:
    kept = {**thing, "metadata": _without(meta(thing), _META_DROPPED)}
    if thing.get("kind") == "Pod":
        status = thing.get("status") or {}
        kept = {name: kept[name] for name in ("apiVersion", "kind", "metadata") if name in kept}
        kept["status"] = {name: status[name] for name in _POD_FIELDS if name in status}
    return kept


def _without(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
