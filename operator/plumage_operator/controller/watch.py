"""kopf's watches, and nothing else: each change goes into the store, and its pool into the queue.

Only `on.event` handlers: they patch nothing, keep no annotation and add no finalizer, and their errors are ours to
retry (our queue does). Children and pods are watched by their label, so that the rest of the cluster is never read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import kopf

from plumage.cluster import GROUP, OURS, OURS_SELECTOR, VERSION, gateway_of
from plumage.errors import ConfigurationError
from plumage_operator import kinds as integrations
from plumage_operator.cache.store import OwnerKey, PoolKey, Store
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key
from plumage_operator.kube.credentials import connection_info
from plumage_operator.observability.metrics import Metrics

__all__ = ["INTEGRATIONS", "WATCHED", "Kind", "apply_event", "make_kopf_settings", "make_registry", "watched"]

log = logging.getLogger(__name__)

Kind = tuple[str, str, str]

WATCHED: Final[tuple[Kind, ...]] = (
    ("", "v1", "configmaps"),
    ("", "v1", "pods"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
)

INTEGRATIONS: Final[dict[str, Kind]] = {
    one.switch: (one.group, one.version, one.plural) for one in integrations.INTEGRATIONS
}
"""Watched where the chart says that the operator may, and that the cluster has them."""

_SETTLES = 0.3  # seconds: a rollout changes a pool's objects in bursts, and one look sees them all

_RECONNECT = 1.0

# A watch is asked for anew after so long, so that a half-dead one can't last; an integer, or it is refused.
_WATCH_SECONDS = 300

_PAGE = 200
"""Objects that kopf's own first list has in memory at once; else it is all there are."""

_IDLE = 0.1  # seconds: as long as an object's worker waits for more, it keeps the last event whole


def watched(switches: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds of children and pods. ConfigurationError for an integration that there is none of."""
    unknown = sorted(set(switches) - set(INTEGRATIONS))
    if unknown:
        raise ConfigurationError(f"no integration {', '.join(unknown)}; there are: {', '.join(INTEGRATIONS)}")
    return (*WATCHED, *(INTEGRATIONS[name] for name in sorted(switches)))


def make_registry(
    store: Store, queue: WorkQueue[Key], metrics: Metrics, kinds: Iterable[Kind] = WATCHED
) -> kopf.OperatorRegistry:
    """What kopf calls."""
    registry = kopf.OperatorRegistry()

    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        metrics.events += 1
        apply_event(store, queue, dict(event["object"]), gone=event["type"] == "DELETED")

    kopf.on.login(registry=registry)(connection_info)
    for plural in ("inferencepools", "inferencegateways"):
        kopf.on.event(GROUP, VERSION, plural, registry=registry, id=f"saw-{plural}")(changed)
    for group, version, plural in kinds:
        where = (group, version, plural) if group else (version, plural)
        kopf.on.event(*where, registry=registry, id=f"saw-{plural}", labels=OURS)(changed)
    return registry


def apply_event(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], *, gone: bool) -> None:
    """What a watch tells of an object: kept, and a look for whatever it concerns now, and concerned before."""
    before = store.owner(thing)
    pool = store.remove(thing) if gone else store.put(thing)
    _enqueue(store, queue, thing, pool)
    if before is not None and before != store.owner(thing):  # it went, or its labels name another now
        _enqueue_owner(store, queue, thing, before)


def _enqueue(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], pool: PoolKey | None) -> None:
    """What the object concerns. pool: where it is news to one."""
    kind, meta = thing.get("kind"), thing["metadata"]
    place = (str(meta.get("namespace")), str(meta.get("name")))
    if kind == "InferencePool" and pool is not None:
        queue.add(("InferencePool", *pool))
        for gateway in store.gateways_at(pool[0]):  # whichever it referred to, or is named by
            queue.add(("InferenceGateway", *gateway), _SETTLES)
    elif kind == "InferenceGateway":
        queue.add(("InferenceGateway", *place))
        for one in store.pools_of(place):
            queue.add(("InferencePool", *one), _SETTLES)
    elif pool is not None:
        _enqueue_owner(store, queue, thing, ("InferencePool", *pool))
    elif (name := gateway_of(meta.get("labels") or {})) is not None:
        queue.add(("InferenceGateway", place[0], name), _SETTLES)


def _enqueue_owner(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], owner: OwnerKey) -> None:
    queue.add(owner, _SETTLES)
    kind, *place = owner
    gateway = store.gateway_of((place[0], place[1])) if kind == "InferencePool" else None
    if thing.get("kind") == "Pod" and gateway is not None:  # it may be cordoned
        queue.add(("InferenceGateway", *gateway), _SETTLES)


def make_kopf_settings(kinds: Iterable[Kind] = WATCHED) -> kopf.OperatorSettings:
    """kopf's settings: no patching of anything, no peering, no watching of CRDs."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = 20.0
    settings.persistence.diffbase_storage = _NothingKept()
    settings.queueing.idle_timeout = _IDLE  # a worker an object: ten thousand must not stay
    settings.queueing.exit_timeout = 1.0
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21, *[30] * 1000)  # an API server may be away for long
    settings.watching.chunk_size = _PAGE
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10.0
    settings.watching.reconnect_backoff = _RECONNECT
    for group, version, plural in kinds:
        settings.watching.label_selectors[(group, version, plural) if group else (version, plural)] = OURS_SELECTOR
    return settings


class _NothingKept(kopf.DiffBaseStorage):
    """What changed since the last time, for handlers that we have none of: kopf would copy every object at every event
    to find out, which is more than all else that it does."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return
