"""Reconciles a pool or a gateway: read, plan, perform.

The queue lets one worker at a time reconcile a key, and repeats a reconcile that failed. Most reconciles come from a
pod that starts or a status that counts it, and no child is made from those. `UnchangedPools` notices this at a
thirtieth of the cost of building and comparing all children.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import xxhash

from plumage.autoscaling import DELETION_COST
from plumage.cluster import COMPONENT_LABEL, CORDON
from plumage_operator.cache.store import PoolKey, Store
from plumage_operator.config import OperatorConfig
from plumage_operator.controller.actions import Action, Annotate, Apply, CreateSecret, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.gateway_plan import plan_gateway_changes, plan_gateway_status
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.plan import plan_changes, plan_key_secret, plan_status
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.kube.errors import ApiError, ConflictError, GoneError, RefusedError, UnavailableError
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.observability.logs import cause
from plumage_operator.observability.metrics import Metrics
from plumage_operator.observed import Object, Observed, Refusal, ScalingDecision, WarningEvent, meta, status_of
from plumage_operator.status.conditions import Reason
from plumage_operator.status.diagnosis import pods_to_explain, stuck_pods

__all__ = ["Key", "Reconciler", "ScalingSource", "UnchangedPools", "fingerprint_of"]

log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""Kind, namespace, name."""

_REFUSED_AGAIN = 30.0  # seconds: no watch reports a changed quota or the deletion of another owner's object

_STUCK_AGAIN = 10.0

_GATEWAY_AGAIN = 300.0  # finds what no watch reported, as `WatchCheck` does for pools

_ERRORS: Final = {
    ConflictError: "conflict",
    GoneError: "gone",
    RefusedError: "refused",
    UnavailableError: "unavailable",
    TimeoutError: "timeout",
}
"""The label `reason` of failed reconciles; `bug` for any other exception."""
_ACTIONS: Final = {
    Apply: "apply",
    CreateSecret: "create_secret",
    Delete: "delete",
    Annotate: "annotate",
    EmitEvent: "emit_event",
    WriteStatus: "write_status",
}
"""The label `action`."""
_LONGEST = 120.0  # seconds of one reconcile; each request has a much shorter timeout

ScalingSource = Callable[[PoolKey, Observed], ScalingDecision | None]
"""The autoscaler's decision on a pool; None while it has none."""


class Reconciler:
    """clock: seconds since 1970."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue[Key],
        warnings: WarningEvents,
        performer: Performer,
        config: OperatorConfig,
        metrics: Metrics,
        *,
        scaling: ScalingSource = lambda _key, _observed: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._queue = queue
        self._warnings = warnings
        self._performer = performer
        self._config = config
        self._metrics = metrics
        self._scaling = scaling
        self._clock = clock
        self._unchanged = UnchangedPools()
        self._refused: dict[Key, tuple[Refusal, ...]] = {}
        self._key_secrets: dict[
            PoolKey, tuple[object, float]
        ] = {}  # uid of the pool whose Secret was created last, and when
        self._refused_statuses: dict[
            Key, tuple[object, Mapping[str, Any]]
        ] = {}  # refused statuses, with the object's uid

    async def work(self) -> None:
        """Reconciles keys that are due, for ever: one worker."""
        while True:
            key = await self._queue.take()
            began = time.perf_counter()
            failed, after = False, None
            try:
                async with asyncio.timeout(_LONGEST):
                    after = await self.reconcile(key)
            except (ApiError, TimeoutError) as error:
                failed, after = self._failed(key, error)
            except Exception:  # a bug that one pool triggers must not end the worker
                self._metrics.errors["bug"] += 1
                log.exception("%s %s/%s: a bug in the operator", *key)
                failed = True
            finally:
                self._queue.done(key, failed=failed, after=after)
                self._metrics.observe(time.perf_counter() - began)

    def _failed(self, key: Key, error: ApiError | TimeoutError) -> tuple[bool, float | None]:
        self._metrics.errors[_ERRORS.get(type(error), "other")] += 1
        if isinstance(error, ConflictError):
            log.debug("%s %s/%s changed meanwhile, retrying", *key)
        else:
            status = error.status if isinstance(error, ApiError) else 0
            why = cause("reconcile", type(error).__name__, status)
            log.warning("%s %s/%s: %s", *key, str(error) or "too slow", extra=why)
        return True, error.after if isinstance(error, UnavailableError) else None

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles once. Returns the seconds until the next reconcile if nothing happens before, or None."""
        kind, namespace, name = key
        if kind == "InferenceGateway":
            return await self._gateway((namespace, name))
        return await self._pool((namespace, name))

    async def _pool(self, key: PoolKey) -> float | None:
        observed = self._store.observe(key)
        if observed is None:
            self._queue.forget(("InferencePool", *key))
            self._unchanged.forget(key)
            self._key_secrets.pop(key, None)
            self._forget(("InferencePool", *key))
            return None
        scaling = self._scaling(key, observed)
        observed = replace(observed, scaling=scaling)
        refusals = await self._create_keys(key, observed) + await self._changes(key, observed)
        stuck = stuck_pods(observed.pods)
        warnings = await self._warnings_of(key[0], stuck)
        now = self._store.observe(key)
        if now is None:
            return None
        refused = self._refused_status(("InferencePool", *key), now.pool)
        now = replace(now, scaling=scaling, refusals=refusals, warnings=warnings, refused_status=refused)
        refusals += await self._write_status(
            ("InferencePool", *key), now, plan_status(now, self._config, self._clock())
        )
        self._log_refusals(("InferencePool", *key), refusals)
        return _REFUSED_AGAIN if refusals else _STUCK_AGAIN if stuck else None

    async def _create_keys(self, key: PoolKey, observed: Observed) -> tuple[Refusal, ...]:
        """Creates the key Secret, but not at each reconcile while pods start: mostly it exists already."""
        uid, now = meta(observed.pool).get("uid"), self._clock()
        whose, when = self._key_secrets.get(key, (None, 0.0))
        recently = whose == uid and 0 <= now - when < _STUCK_AGAIN
        actions = plan_key_secret(observed, self._config, recently=recently)
        refusals = await self._perform(observed, actions)
        if actions and not refusals:
            self._key_secrets[key] = (uid, now)
        return refusals

    async def _changes(self, key: PoolKey, observed: Observed) -> tuple[Refusal, ...]:
        fingerprint = fingerprint_of(observed)
        if self._unchanged.is_unchanged(key, fingerprint):
            return ()
        actions = plan_changes(observed, self._config)
        self._unchanged.record(key, fingerprint, unchanged=not actions)
        return await self._perform(observed, actions)

    async def _perform(self, observed: Observed, actions: tuple[Action, ...]) -> tuple[Refusal, ...]:
        for action in actions:
            self._metrics.actions[_ACTIONS[type(action)]] += 1
        refusals = await self._performer.perform(observed.pool, actions)
        self._metrics.refusals.update(one.kind for one in refusals)
        return refusals

    async def _write_status(self, key: Key, observed: Observed, actions: tuple[Action, ...]) -> tuple[Refusal, ...]:
        """Writes events and status. A refused status is kept, so that its events are not repeated at each reconcile."""
        refusals = await self._perform(observed, actions)
        status = next((one.status for one in actions if isinstance(one, WriteStatus)), None)
        if status is not None and any(one.kind == key[0] for one in refusals):
            self._refused_statuses[key] = (meta(observed.pool).get("uid"), status)
        else:
            self._refused_statuses.pop(key, None)
        return refusals

    def _refused_status(self, key: Key, thing: Object) -> Mapping[str, Any] | None:
        uid, status = self._refused_statuses.get(key, (None, None))
        return status if uid == meta(thing).get("uid") else None

    def _forget(self, key: Key) -> None:
        self._refused.pop(key, None)
        self._refused_statuses.pop(key, None)

    def _log_refusals(self, key: Key, refusals: tuple[Refusal, ...]) -> None:
        """Logs new refusals. The status may itself be refused, for example because of a missing right."""
        for one in refusals:
            if one not in self._refused.get(key, ()):
                about = key[1] if one.reason == Reason.NAMESPACE_ENDS else one.kind
                log.warning("%s %s/%s: %s: %s", *key, one.reason, one.message, extra=cause(one.reason, about))
        self._refused[key] = refusals

    async def _warnings_of(self, namespace: str, stuck: list[Object]) -> tuple[WarningEvent, ...]:
        late = pods_to_explain(stuck, self._clock())
        return await self._warnings.list_for(namespace, late) if late else ()

    async def _gateway(self, key: PoolKey) -> float | None:
        observed = self._store.observe_gateway(key)
        if observed is None:
            self._queue.forget(("InferenceGateway", *key))
            self._forget(("InferenceGateway", *key))
            return None
        refusals = await self._perform(observed.own, plan_gateway_changes(observed, self._config))
        stuck = stuck_pods(observed.own.pods)
        warnings = await self._warnings_of(key[0], stuck)
        now = self._store.observe_gateway(key)
        if now is None:
            return None
        refused = self._refused_status(("InferenceGateway", *key), now.own.pool)
        now = replace(now, own=replace(now.own, refusals=refusals, warnings=warnings, refused_status=refused))
        refusals += await self._write_status(
            ("InferenceGateway", *key), now.own, plan_gateway_status(now, self._config, self._clock())
        )
        self._log_refusals(("InferenceGateway", *key), refusals)
        return _REFUSED_AGAIN if refusals else _STUCK_AGAIN if stuck else _GATEWAY_AGAIN


_METADATA: Final = frozenset({"resourceVersion", "managedFields"})

_OF_A_POD: Final = (CORDON, DELETION_COST)
"""All annotations of pods that a plan reads. There are thousands of pods."""

_encode = msgspec.json.Encoder(order="sorted").encode


class UnchangedPools:
    """Pools whose last plan had no change, with a fingerprint of what that plan read."""

    def __init__(self) -> None:
        self._fingerprints: dict[tuple[str, str], int] = {}

    def is_unchanged(self, key: tuple[str, str], fingerprint: int) -> bool:
        """Whether a plan of the same fingerprint had no change."""
        return self._fingerprints.get(key) == fingerprint

    def record(self, key: tuple[str, str], fingerprint: int, *, unchanged: bool) -> None:
        """Records whether a plan had no change."""
        if unchanged:
            self._fingerprints[key] = fingerprint
        else:
            self._fingerprints.pop(key, None)

    def forget(self, key: tuple[str, str]) -> None:
        """Drops a deleted pool."""
        self._fingerprints.pop(key, None)


def fingerprint_of(observed: Observed) -> int:
    """A hash of all that `plan_changes` reads: everything without statuses, and one field of the pool's status."""
    scaling = observed.scaling
    seen = (
        _without_status(observed.pool),
        status_of(observed.pool).get("desiredReplicas"),
        [_without_status(child) for child in observed.children.values()],
        None if observed.external is None else _without_status(observed.external),
        _annotated(observed.pods, frozenset(scaling.deletion_costs) if scaling else frozenset()),
        None if scaling is None else (scaling.desired, scaling.deletion_costs),
    )
    return xxhash.xxh3_64_intdigest(_encode(seen))


def _annotated(pods: Iterable[Object], costed: frozenset[str]) -> list[tuple[Any, ...]]:
    """Names, components and annotations of the pods that a plan may read."""
    found = []
    for pod in pods:
        name, labels = meta(pod).get("name"), meta(pod).get("labels") or {}
        values = [(meta(pod).get("annotations") or {}).get(annotation) for annotation in _OF_A_POD]
        if name in costed or any(values):
            found.append((name, labels.get(COMPONENT_LABEL), *values))
    return found


def _without_status(thing: Object) -> Mapping[str, Any]:
    kept = {name: value for name, value in thing.items() if name != "status"}
    kept["metadata"] = {name: value for name, value in meta(thing).items() if name not in _METADATA}
    return kept
