"""kopf's watches: each change goes into the cache, and its pool into the queue.

Only `on.event` handlers are used. They patch nothing, keep no annotation and add no finalizer, and the operator's own
queue retries failures. Children and pods are watched by their label, so that the rest of the cluster is never read. But
InferencePools of the Gateway API are all watched: pools get their engines from those of others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import kopf

from plumage.cluster import GROUP, OURS, VERSION, gateway_of
from plumage.errors import ConfigurationError
from plumage_operator import kinds as integrations
from plumage_operator.cache.store import OwnerKey, PoolKey, Store
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key
from plumage_operator.kube.credentials import connection_info
from plumage_operator.observability.metrics import Metrics
from plumage_operator.observed import key_of

__all__ = ["INTEGRATIONS", "WATCHED", "Kind", "apply_event", "make_kopf_settings", "make_registry", "watched_kinds"]

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
"""Watched where the chart says that the operator has the right, and the cluster has the kinds."""

_BURST = 0.3  # seconds: a rollout changes a pool's objects in bursts, and one reconcile handles a burst

_RECONNECT = 1.0

# A watch is restarted after this time, so that a broken one ends. It must be an integer, or the API server refuses it.
_WATCH_SECONDS = 300

_PAGE = 200
"""Objects that kopf's first list has in memory at once; the default is all of them."""

_IDLE = 0.1  # seconds; while an object's worker waits for more events, it keeps the last one in memory


def watched_kinds(switches: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds of children and pods. Raises ConfigurationError for an unknown integration."""
    unknown = sorted(set(switches) - set(INTEGRATIONS))
    if unknown:
        raise ConfigurationError(f"unknown integration {', '.join(unknown)}; known are: {', '.join(INTEGRATIONS)}")
    return (*WATCHED, *(INTEGRATIONS[name] for name in sorted(switches)))


def make_registry(
    store: Store, queue: WorkQueue[Key], metrics: Metrics, kinds: Iterable[Kind] = WATCHED
) -> kopf.OperatorRegistry:
    """kopf's handlers."""
    registry = kopf.OperatorRegistry()

    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        metrics.events += 1
        apply_event(store, queue, dict(event["object"]), gone=event["type"] == "DELETED")

    kopf.on.login(registry=registry)(connection_info)
    for plural in ("inferencepools", "inferencegateways"):
        kopf.on.event(GROUP, VERSION, plural, registry=registry, id=f"saw-{plural}")(changed)
    for group, version, plural in kinds:
        where = (group, version, plural) if group else (version, plural)
        labels = OURS if integrations.label_selector(group) else None
        kopf.on.event(*where, registry=registry, id=f"saw-{plural}.{group}", labels=labels)(changed)
    return registry


def apply_event(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], *, gone: bool) -> None:
    """Applies an event to the cache. Queues what the object concerns now, and what it concerned before."""
    before = store.owner(thing)
    pool = store.remove(thing) if gone else store.put(thing)
    _enqueue(store, queue, thing, pool)
    if before is not None and before != store.owner(thing):  # it was deleted, or its labels name another owner
        _enqueue_owner(store, queue, thing, before)
    for external in store.pools_on(thing):
        queue.add(("InferencePool", *external), _BURST)


def _enqueue(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], pool: PoolKey | None) -> None:
    """Queues what the object concerns. pool: its pool, if the event changed anything."""
    (kind, _), meta = key_of(thing), thing["metadata"]
    place = (str(meta.get("namespace")), str(meta.get("name")))
    if kind == "InferencePool" and pool is not None:
        queue.add(("InferencePool", *pool))
        for gateway in store.gateways_at(pool[0]):  # those it referred to before, too
            queue.add(("InferenceGateway", *gateway), _BURST)
    elif kind == "InferenceGateway":
        queue.add(("InferenceGateway", *place))
        for one in store.pools_of(place):
            queue.add(("InferencePool", *one), _BURST)
    elif pool is not None:
        _enqueue_owner(store, queue, thing, ("InferencePool", *pool))
    elif (name := gateway_of(meta.get("labels") or {})) is not None:
        queue.add(("InferenceGateway", place[0], name), _BURST)


def _enqueue_owner(store: Store, queue: WorkQueue[Key], thing: dict[str, Any], owner: OwnerKey) -> None:
    queue.add(owner, _BURST)
    kind, *place = owner
    gateway = store.gateway_of((place[0], place[1])) if kind == "InferencePool" else None
    if thing.get("kind") == "Pod" and gateway is not None:  # it may be cordoned now
        queue.add(("InferenceGateway", *gateway), _BURST)


def make_kopf_settings(kinds: Iterable[Kind] = WATCHED) -> kopf.OperatorSettings:
    """kopf's settings: it patches nothing, has no peering and watches no CRDs."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = 20.0
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.queueing.idle_timeout = _IDLE  # there is a worker for each object: ten thousand must not stay
    settings.queueing.exit_timeout = 1.0
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21, *[30] * 1000)  # an API server may be down for long
    settings.watching.chunk_size = _PAGE
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10.0
    settings.watching.reconnect_backoff = _RECONNECT
    for group, version, plural in kinds:
        if selector := integrations.label_selector(group):
            settings.watching.label_selectors[(group, version, plural) if group else (version, plural)] = selector
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """The last state of objects, for handlers that the operator does not have.

    kopf would copy every object at every event to compute it, which costs more than all its other work.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return
