"""The operator's picture of its cluster: what the watches told last, by pool.

Contract: a reconcile reads here and asks the API server for nothing, so that ten thousand pods cost no requests.
Objects are kept as JSON without what nobody reads (a thousand pools in a few dozen megabytes), and an older version
never replaces a newer one: answers to our own writes are put here too and may overtake the watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import msgspec

from plumage.cluster import POOL_LABEL, pool_of
from plumage_operator.observed import ChildKey, Object, Observed, key_of, meta

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
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways[namespace, name] = _encode(_trimmed(thing))
            return None
        pool = pool_of(meta(thing).get("labels") or {})
        if pool is None:
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
            return namespace, name
        if kind == "InferenceGateway":
            self._gateways.pop((namespace, name), None)
            return None
        key = (namespace, pool_of(meta(thing).get("labels") or {}) or "")
        owned = self._owned.get(key, {})
        owned.pop((kind, name), None)
        if not owned:
            self._owned.pop(key, None)
        return key if key[1] else None

    def forget(self, kind: str, places: Set[Place]) -> set[PoolKey]:
        """`remove` objects of which no more is known than where they were; the pools they concerned. One pass."""
        owned = ((key[0], name, key[1]) for key, of in self._owned.items() for had, name in of if had == kind)
        lost = [place for place in owned if place[:2] in places]
        lost += [(*place, "") for place in places - {place[:2] for place in lost}]
        told = (self.remove(_named(kind, *place)) for place in lost)
        return {pool for pool in told if pool}

    def held(self, kind: str) -> dict[Place, int]:
        """The versions of all objects of a kind."""
        return dict(self._versions.get(kind, {}))

    def pools(self) -> list[PoolKey]:
        """All pools there are."""
        return list(self._pools)

    def pools_at(self, gateway: PoolKey) -> list[PoolKey]:
        """The pools of a gateway's namespace: any of them may refer to it."""
        return [key for key in self._pools if key[0] == gateway[0]]

    def gateways_at(self, namespace: str) -> list[PoolKey]:
        """The gateways of a namespace."""
        return [key for key in self._gateways if key[0] == namespace]

    def gateway(self, key: PoolKey) -> Mapping[str, Any] | None:
        """A gateway's object."""
        found = self._gateways.get(key)
        return None if found is None else _decode(found)

    def version(self, kind: str, namespace: str, name: str) -> int:
        """The resourceVersion that is kept, -1 for nothing."""
        return self._versions.get(kind, {}).get((namespace, name), -1)

    def observe(self, key: PoolKey) -> Observed | None:
        """A pool with everything of its own; None where there is no such pool."""
        pool = self._pools.get(key)
        if pool is None:
            return None
        owned = {child: _decode(text) for child, text in self._owned.get(key, {}).items()}
        return Observed(
            pool=_decode(pool),
            children={child: thing for child, thing in owned.items() if child[0] != "Pod"},
            pods=tuple(thing for child, thing in sorted(owned.items()) if child[0] == "Pod"),
            gateways=frozenset(name for namespace, name in self._gateways if namespace == key[0]),
        )


def _named(kind: str, namespace: str, name: str, pool: str) -> Object:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name, "labels": {POOL_LABEL: pool}}}


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
