"""The operator's copy of the cluster: what the watches reported last, by pool.

A reconcile reads here and sends no request to the API server, so that ten thousand pods cost no requests. Objects are
kept as JSON without the fields that nobody reads: a thousand pools take a few dozen megabytes. An older version never
replaces a newer one, because answers to the operator's own writes are put here too and may overtake the watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, Final

import msgspec

from plumage.cluster import gateway_of, pool_of
from plumage_operator.kinds import PUBLISHED_POOL
from plumage_operator.observed import (
    AttachedPool,
    ChildKey,
    Object,
    Observed,
    ObservedGateway,
    external_of,
    key_of,
    meta,
    owner_uid,
)

__all__ = ["ObjectKey", "OwnerKey", "PoolKey", "Store"]

PoolKey = tuple[str, str]
"""Namespace and name of a pool."""

ObjectKey = tuple[str, str]
"""Namespace and name of any object."""

OwnerKey = tuple[str, str, str]
"""Kind (a pool or a gateway), namespace and name of an object's owner by its labels. The owner need not exist."""

_POD_FIELDS: Final = ("conditions", "containerStatuses", "initContainerStatuses", "message", "phase", "podIP", "reason")

_POD_SPEC_FIELDS: Final = ("nodeName", "readinessGates")

_META_DROPPED: Final = ("managedFields", "selfLink", "generateName")

_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder().decode


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _WithStatus(msgspec.Struct):
    """A pool or gateway. Its other fields are skipped: a scrape reads all pools."""

    status: _Status | None = None


_decode_status = msgspec.json.Decoder(_WithStatus).decode


class Store:
    """Pools, gateways, children and pods. Not thread-safe: use it in one event loop."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, bytes] = {}
        self._gateways: dict[PoolKey, bytes] = {}
        self._owned: dict[OwnerKey, dict[ChildKey, bytes]] = {}
        self._owners: dict[str, dict[ObjectKey, OwnerKey]] = {}  # by kind: the owner that an object is kept for
        self._lost: dict[
            OwnerKey, dict[ChildKey, str]
        ] = {}  # deleted children of owners that exist, with the owner's uid
        self._referred: dict[PoolKey, str] = {}  # the gateway of each pool that refers to one
        self._published: dict[ObjectKey, bytes] = {}  # the Gateway API's InferencePools, of any owner
        self._external: dict[PoolKey, str] = {}  # the one that names the engines of each pool with external ones
        self._versions: dict[str, dict[ObjectKey, int]] = {}

    def put(self, thing: Object) -> PoolKey | None:
        """Keeps an object. Returns the pool that it concerns, or None if it concerns none or changes nothing."""
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
        if kind == PUBLISHED_POOL:
            self._published[namespace, name] = _encode(_trimmed(thing))
        return self._keep(kind, (namespace, name), thing)

    def _keep(self, kind: str, place: ObjectKey, thing: Object) -> PoolKey | None:
        """Keeps it for its present owner only: labels change, for example when people isolate a pod."""
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
        """Removes an object, unless a newer one of its name is kept. Returns the pool that it concerned."""
        kind, name = key_of(thing)
        namespace, version = str(meta(thing).get("namespace", "")), _version(thing)
        if 0 < version < self.version(kind, namespace, name):
            return None
        self._versions.get(kind, {}).pop((namespace, name), None)
        self._lost.pop((kind, namespace, name), None)
        if kind == "InferencePool":
            self._pools.pop((namespace, name), None)
            self._referred.pop((namespace, name), None)
            self._external.pop((namespace, name), None)
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways.pop((namespace, name), None)
            return None
        if kind == PUBLISHED_POOL:
            self._published.pop((namespace, name), None)
        return _pool_key(self._drop(kind, (namespace, name)))

    def _drop(self, kind: str, place: ObjectKey) -> OwnerKey | None:
        """Removes it and returns the owner that it was kept for."""
        owner = self._owners.get(kind, {}).pop(place, None)
        if owner is not None:
            owned = self._owned[owner]
            text = owned.pop((kind, place[1]))
            if not owned:
                del self._owned[owner]
            if kind != "Pod" and owner[1:] in (self._pools if owner[0] == "InferencePool" else self._gateways):
                self._lost.setdefault(owner, {})[kind, place[1]] = owner_uid(_decode(text))
        return owner

    def forget(self, kind: str, places: Set[ObjectKey]) -> set[PoolKey]:
        """Removes objects by their place. Returns the pools that they concerned."""
        things = [_named(kind, *place) for place in places]
        concerned = {pool for thing in things if (pool := self.remove(thing))}
        return concerned.union(*(self.pools_on(thing) for thing in things))

    def owner(self, thing: Object) -> OwnerKey | None:
        """The owner that an object is kept for, whatever its labels are now."""
        kind, name = key_of(thing)
        return self._owners.get(kind, {}).get((str(meta(thing).get("namespace", "")), name))

    def versions(self, kind: str) -> dict[ObjectKey, int]:
        """The versions of all objects of a kind."""
        return dict(self._versions.get(kind, {}))

    def pools(self) -> list[PoolKey]:
        """All pools."""
        return list(self._pools)

    def conditions(self) -> Iterator[tuple[str, str, str, str, str, str]]:
        """Kind, namespace and name of each pool and gateway, with type, status and reason of each of its conditions."""
        for kind, things in (("InferencePool", self._pools), ("InferenceGateway", self._gateways)):
            for (namespace, name), thing in things.items():
                status = _decode_status(thing).status
                for one in (status.conditions if status is not None else None) or ():
                    yield kind, namespace, name, one.type, one.status, one.reason

    def pools_of(self, gateway: PoolKey) -> list[PoolKey]:
        """The pools that refer to a gateway. The gateway need not exist."""
        return [key for key, name in self._referred.items() if (key[0], name) == gateway]

    def gateway_of(self, pool: PoolKey) -> PoolKey | None:
        """The gateway that a pool refers to. It need not exist."""
        name = self._referred.get(pool)
        return None if name is None else (pool[0], name)

    def pools_on(self, thing: Object) -> list[PoolKey]:
        """The pools whose engines this InferencePool of the Gateway API names; none for any other object."""
        kind, name = key_of(thing)
        if kind != PUBLISHED_POOL or not self._external:
            return []
        place = (str(meta(thing).get("namespace", "")), name)
        return [key for key, reference in self._external.items() if (key[0], reference) == place]

    def gateways_at(self, namespace: str) -> list[PoolKey]:
        """The gateways of a namespace."""
        return [key for key in self._gateways if key[0] == namespace]

    def observe_gateway(self, key: PoolKey) -> ObservedGateway | None:
        """A gateway with all its objects and its pools; None if it does not exist."""
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
        """The resourceVersion that is kept; -1 if none is."""
        return self._versions.get(kind, {}).get((namespace, name), -1)

    def observe(self, key: PoolKey) -> Observed | None:
        """A pool with all its objects; None if it does not exist."""
        pool = self._pools.get(key)
        if pool is None:
            return None
        observed, place = self._observed(pool, ("InferencePool", *key)), self.gateway_of(key)
        external = self._published.get((key[0], self._external.get(key, "")))
        if external is not None:
            observed = replace(observed, external=_decode(external))
        gateway = None if place is None else self._gateways.get(place)
        if place is None or gateway is None:
            return observed
        return replace(
            observed, gateway=_decode(gateway), gateway_pods=_pods(self._owned.get(("InferenceGateway", *place), {}))
        )

    def _refer(self, key: PoolKey, pool: Object) -> None:
        router = (pool.get("spec") or {}).get("router") or {}
        name = (router.get("gatewayRef") or {}).get("name")
        for references, found in ((self._referred, name), (self._external, external_of(pool))):
            if found is None:
                references.pop(key, None)
            else:
                references[key] = str(found)

    def _observed(self, thing: bytes, key: OwnerKey) -> Observed:
        """A pool or gateway with all its objects."""
        owned = self._owned.get(key, {})
        children = {child: _decode(text) for child, text in owned.items() if child[0] != "Pod"}
        pool = _decode(thing)
        uids = ("", meta(pool).get("uid"))  # children of a deleted pool of the same name do not count
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
    """resourceVersions of one resource can be compared: promised since Kubernetes 1.35, and true before."""
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
