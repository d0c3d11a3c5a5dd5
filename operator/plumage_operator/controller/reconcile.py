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
from plumage_operator.controller.actions import Action, WriteStatus
from plumage_operator.controller.gateway_plan import plan_gateway_changes, plan_gateway_status
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.plan import plan_changes, plan_key_secret, plan_status
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.kube.errors import ApiError, ConflictError, UnavailableError
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

_REFUSED_AGAIN = 30.0  # seconds: who changed a quota or removed an object is not waited for by a watch

_STUCK_AGAIN = 10.0

_GATEWAY_AGAIN = 300.0  # what no watch told is found then, as `Freshness` does it for pools

_LONGEST = 120.0  # seconds of one look; each request has its own bound well below

ScalingSource = Callable[[PoolKey, Observed], ScalingDecision | None]
"""The autoscaler's word on a pool; None while it has none."""


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
        word: ScalingSource = lambda _key, _observed: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._queue = queue
        self._warnings = warnings
        self._performer = performer
        self._config = config
        self._metrics = metrics
        self._word = word
        self._clock = clock
        self._unchanged = UnchangedPools()
        self._refused: dict[Key, tuple[Refusal, ...]] = {}
        self._keyed: dict[PoolKey, tuple[object, float]] = {}  # whose Secret was made last, by uid, and when
        self._refused_statuses: dict[
            Key, tuple[object, Mapping[str, Any]]
        ] = {}  # statuses that were refused, and whose: a uid

    async def work(self) -> None:
        """One worker: takes what is due, for ever."""
        while True:
            key = await self._queue.take()
            began = time.perf_counter()
            failed, after = False, None
            try:
                async with asyncio.timeout(_LONGEST):
                    after = await self.reconcile(key)
            except (ApiError, TimeoutError) as error:
                failed, after = self._failed(key, error)
            except Exception:  # a mistake of ours in one pool must not end the worker of all
                self._metrics.errors["Bug"] += 1
                log.exception("%s %s/%s: this should not happen", *key)
                failed = True
            finally:
                self._queue.done(key, failed=failed, after=after)
                self._metrics.observe(time.perf_counter() - began)

    def _failed(self, key: Key, error: ApiError | TimeoutError) -> tuple[bool, float | None]:
        self._metrics.errors[type(error).__name__] += 1
        if isinstance(error, ConflictError):
            log.debug("%s %s/%s changed meanwhile, looking again", *key)
        else:
            status = error.status if isinstance(error, ApiError) else 0
            why = cause("reconcile", type(error).__name__, status)
            log.warning("%s %s/%s: %s", *key, str(error) or "too slow", extra=why)
        return True, error.after if isinstance(error, UnavailableError) else None

    async def reconcile(self, key: Key) -> float | None:
        """Look once. Answers in how many seconds to look again, if nothing happens before."""
        kind, namespace, name = key
        if kind == "InferenceGateway":
            return await self._gateway((namespace, name))
        return await self._pool((namespace, name))

    async def _pool(self, key: PoolKey) -> float | None:
        observed = self._store.observe(key)
        if observed is None:
            self._queue.forget(("InferencePool", *key))
            self._unchanged.forget(key)
            self._keyed.pop(key, None)
            self._forget(("InferencePool", *key))
            return None
        scaling = self._word(key, observed)
        observed = replace(observed, scaling=scaling)
        refusals = await self._keys(key, observed) + await self._changes(key, observed)
        stuck = stuck_pods(observed.pods)
        warnings = await self._warnings_of(key[0], stuck)
        now = self._store.observe(key)
        if now is None:
            return None
        refused = self._refused_status(("InferencePool", *key), now.pool)
        now = replace(now, scaling=scaling, refusals=refusals, warnings=warnings, refused_status=refused)
        refusals += await self._say(("InferencePool", *key), now, plan_status(now, self._config, self._clock()))
        self._log(("InferencePool", *key), refusals)
        return _REFUSED_AGAIN if refusals else _STUCK_AGAIN if stuck else None

    async def _keys(self, key: PoolKey, observed: Observed) -> tuple[Refusal, ...]:
        """Not at each look at pods that start: the request says only that the Secret is there."""
        uid, now = meta(observed.pool).get("uid"), self._clock()
        whose, when = self._keyed.get(key, (None, 0.0))
        recently = whose == uid and 0 <= now - when < _STUCK_AGAIN
        actions = plan_key_secret(observed, self._config, recently=recently)
        refusals = await self._do(observed, actions)
        if actions and not refusals:
            self._keyed[key] = (uid, now)
        return refusals

    async def _changes(self, key: PoolKey, observed: Observed) -> tuple[Refusal, ...]:
        fingerprint = fingerprint_of(observed)
        if self._unchanged.is_unchanged(key, fingerprint):
            return ()
        actions = plan_changes(observed, self._config)
        self._unchanged.record(key, fingerprint, unchanged=not actions)
        return await self._do(observed, actions)

    async def _do(self, observed: Observed, actions: tuple[Action, ...]) -> tuple[Refusal, ...]:
        for action in actions:
            self._metrics.actions[type(action).__name__] += 1
        refusals = await self._performer.perform(observed.pool, actions)
        self._metrics.refusals.update(one.kind for one in refusals)
        return refusals

    async def _say(self, key: Key, observed: Observed, words: tuple[Action, ...]) -> tuple[Refusal, ...]:
        """What a status that is refused says was told: its events are not told at each look again."""
        refusals = await self._do(observed, words)
        status = next((word.status for word in words if isinstance(word, WriteStatus)), None)
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

    def _log(self, key: Key, refusals: tuple[Refusal, ...]) -> None:
        """What is news: a missing right is found here, where the status itself may be refused, or says no more."""
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
        refusals = await self._do(observed.own, plan_gateway_changes(observed, self._config))
        stuck = stuck_pods(observed.own.pods)
        warnings = await self._warnings_of(key[0], stuck)
        now = self._store.observe_gateway(key)
        if now is None:
            return None
        refused = self._refused_status(("InferenceGateway", *key), now.own.pool)
        now = replace(now, own=replace(now.own, refusals=refusals, warnings=warnings, refused_status=refused))
        refusals += await self._say(
            ("InferenceGateway", *key), now.own, plan_gateway_status(now, self._config, self._clock())
        )
        self._log(("InferenceGateway", *key), refusals)
        return _REFUSED_AGAIN if refusals else _STUCK_AGAIN if stuck else _GATEWAY_AGAIN


_METADATA: Final = frozenset({"resourceVersion", "managedFields"})

_OF_A_POD: Final = (CORDON, DELETION_COST)
"""All that a plan reads on pods, which come and go by the thousand: what people and the autoscaler wrote there."""

_encode = msgspec.json.Encoder(order="sorted").encode


class UnchangedPools:
    """One number for each key."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str], int] = {}

    def is_unchanged(self, key: tuple[str, str], fingerprint: int) -> bool:
        """Whether nothing was to be done when all was as it is now."""
        return self._marks.get(key) == fingerprint

    def record(self, key: tuple[str, str], fingerprint: int, *, unchanged: bool) -> None:
        """There was nothing to be done; or there was, and it is looked at again."""
        if unchanged:
            self._marks[key] = fingerprint
        else:
            self._marks.pop(key, None)

    def forget(self, key: tuple[str, str]) -> None:
        """The pool is gone."""
        self._marks.pop(key, None)


def fingerprint_of(observed: Observed) -> int:
    """A hash of all that `plan_changes` looks at: everything but what statuses say, less one field of the pool's."""
    scaling = observed.scaling
    seen = (
        _shape(observed.pool),
        status_of(observed.pool).get("desiredReplicas"),
        [_shape(child) for child in observed.children.values()],
        _marked(observed.pods, frozenset(scaling.deletion_costs) if scaling else frozenset()),
        None if scaling is None else (scaling.desired, scaling.deletion_costs),
    )
    return xxhash.xxh3_64_intdigest(_encode(seen))


def _marked(pods: Iterable[Object], costed: frozenset[str]) -> list[tuple[Any, ...]]:
    """Of the pods that a plan may read: their names, their parts, and what is written on them."""
    found = []
    for pod in pods:
        name, labels = meta(pod).get("name"), meta(pod).get("labels") or {}
        said = [(meta(pod).get("annotations") or {}).get(annotation) for annotation in _OF_A_POD]
        if name in costed or any(said):
            found.append((name, labels.get(COMPONENT_LABEL), *said))
    return found


def _shape(thing: Object) -> Mapping[str, Any]:
    kept = {name: value for name, value in thing.items() if name != "status"}
    kept["metadata"] = {name: value for name, value in meta(thing).items() if name not in _METADATA}
    return kept
