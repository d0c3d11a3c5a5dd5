"""The operator's picture of its cluster: what the watches told last, by pool.

Contract: a reconcile reads here and asks the API server for nothing, so that ten thousand pods cost no requests.
Objects are kept as JSON without what nobody reads (a thousand pools in a few dozen megabytes), and an older version
never replaces a newer one: answers to our own writes are put here too and may overtake the watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Final

import msgspec

from plumage.cluster import gateway_of, pool_of
from plumage_operator.observed import AttachedPool, ChildKey, Object, Observed, ObservedGateway, key_of, meta, owner_uid

__all__ = ["ObjectKey", "OwnerKey", "PoolKey", "Store"]

PoolKey = tuple[str, str]
"""Namespace and name of a pool."""

ObjectKey = tuple[str, str]
"""Namespace and name of anything."""

OwnerKey = tuple[str, str, str]
"""Kind (a pool or a gateway), namespace and name of what an object belongs to by its labels, be it there or not."""

_POD_FIELDS: Final = ("conditions", "containerStatuses", "initContainerStatuses", "message", "phase", "podIP", "reason")

_POD_SPEC_FIELDS: Final = ("nodeName", "readinessGates")

_META_DROPPED: Final = ("managedFields", "selfLink", "generateName")

_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder().decode


class Store:
    """Pools, gateways, children and pods. Not safe for threads; it lives in one event loop."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, bytes] = {}
        self._gateways: dict[PoolKey, bytes] = {}
        self._owned: dict[OwnerKey, dict[ChildKey, bytes]] = {}
        self._owners: dict[str, dict[ObjectKey, OwnerKey]] = {}  # of each kind: whom an object is kept for
        self._lost: dict[
            OwnerKey, dict[ChildKey, str]
        ] = {}  # children that went from an owner that is there: whose uid
        self._referred: dict[PoolKey, str] = {}  # the gateway of each pool that has one
        self._versions: dict[str, dict[ObjectKey, int]] = {}

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
        return self._keep(kind, (namespace, name), thing)

    def _keep(self, kind: str, place: ObjectKey, thing: Object) -> PoolKey | None:
        """With its present owner, and with no former one: labels change, as when people isolate a pod."""
        owner = _owner_of(thing)
        if owner != self._owners.get(kind, {}).get(place):
            self._drop(kind, place)
        if owner is None:
            return None
        self._owners.setdefault(kind, {})[place] = owner
        self._owned.setdefault(owner, {})[kind, place[1]] = _encode(_trimmed(thing))
        self._lost.get(owner, {}).pop((kind, place[1]), None)
        return _pool_key(owner)

    def remove(self, thing: Object) -> PoolKey | None:
        """Forget an object, unless a newer one of its name is kept. Answers the pool that it concerned."""
        kind, name = key_of(thing)
        namespace, version = str(meta(thing).get("namespace", "")), _version(thing)
        if 0 < version < self.version(kind, namespace, name):
            return None
        self._versions.get(kind, {}).pop((namespace, name), None)
        self._lost.pop((kind, namespace, name), None)
        if kind == "InferencePool":
            self._pools.pop((namespace, name), None)
            self._referred.pop((namespace, name), None)
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways.pop((namespace, name), None)
            return None
        return _pool_key(self._drop(kind, (namespace, name)))

    def _drop(self, kind: str, place: ObjectKey) -> OwnerKey | None:
        """Whom it was kept for."""
        owner = self._owners.get(kind, {}).pop(place, None)
        if owner is not None:
            of = self._owned[owner]
            text = of.pop((kind, place[1]))
            if not of:
                del self._owned[owner]
            if kind != "Pod" and owner[1:] in (self._pools if owner[0] == "InferencePool" else self._gateways):
                self._lost.setdefault(owner, {})[kind, place[1]] = owner_uid(_decode(text))
        return owner

    def forget(self, kind: str, places: Set[ObjectKey]) -> set[PoolKey]:
        """`remove` objects of which no more is known than where they were; the pools they concerned."""
        told = (self.remove(_named(kind, *place)) for place in places)
        return {pool for pool in told if pool}

    def owner(self, thing: Object) -> OwnerKey | None:
        """Whom an object is kept for, whatever its labels say now."""
        kind, name = key_of(thing)
        return self._owners.get(kind, {}).get((str(meta(thing).get("namespace", "")), name))

    def held(self, kind: str) -> dict[ObjectKey, int]:
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
            own=self._observed(gateway, ("InferenceGateway", *key)),
            attached=tuple(
                AttachedPool(_decode(self._pools[pool]), _pods(self._owned.get(("InferencePool", *pool), {})))
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
        observed, place = self._observed(pool, ("InferencePool", *key)), self.gateway_of(key)
        gateway = None if place is None else self._gateways.get(place)
        if place is None or gateway is None:
            return observed
        return replace(
            observed, gateway=_decode(gateway), gateway_pods=_pods(self._owned.get(("InferenceGateway", *place), {}))
        )

    def _refer(self, key: PoolKey, pool: Object) -> None:
        router = (pool.get("spec") or {}).get("router") or {}
        name = (router.get("gatewayRef") or {}).get("name")
        if name is None:
            self._referred.pop(key, None)
        else:
            self._referred[key] = str(name)

    def _observed(self, thing: bytes, key: OwnerKey) -> Observed:
        """A pool or gateway with everything of its own."""
        owned = self._owned.get(key, {})
        children = {child: _decode(text) for child, text in owned.items() if child[0] != "Pod"}
        pool = _decode(thing)
        uids = ("", meta(pool).get("uid"))  # a namesake's, which was deleted, were collected
        lost = frozenset(child for child, uid in self._lost.get(key, {}).items() if uid in uids)
        return Observed(pool, children, _pods(owned), lost_children=lost)


def _owner_of(thing: Object) -> OwnerKey | None:
    labels, namespace = meta(thing).get("labels") or {}, str(meta(thing).get("namespace", ""))
    if (pool := pool_of(labels)) is not None:
        return "InferencePool", namespace, pool
    if (gateway := gateway_of(labels)) is not None:
        return "InferenceGateway", namespace, gateway
    return None


def _pool_key(owner: OwnerKey | None) -> PoolKey | None:
    return owner[1:] if owner is not None and owner[0] == "InferencePool" else None


def _pods(owned: Mapping[ChildKey, bytes]) -> tuple[Object, ...]:
    return tuple(_decode(text) for child, text in sorted(owned.items()) if child[0] == "Pod")


def _named(kind: str, namespace: str, name: str) -> Object:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name}}


def _version(thing: Object) -> int:
    """Kubernetes lets versions of one resource be compared since 1.35; before it was so, and not promised."""
    text = str(meta(thing).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def _trimmed(thing: Object) -> dict[str, Any]:
    kept = {**thing, "metadata": _without(meta(thing), _META_DROPPED)}
    if thing.get("kind") == "Pod":
        status = thing.get("status") or {}
        spec = thing.get("spec") or {}
        kept = {name: kept[name] for name in ("apiVersion", "kind", "metadata") if name in kept}
        kept["spec"] = {name: spec[name] for name in _POD_SPEC_FIELDS if name in spec}
        kept["status"] = {name: status[name] for name in _POD_FIELDS if name in status}
    return kept


def _without(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
