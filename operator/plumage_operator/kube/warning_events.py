"""Warning events about pods: one list of a namespace serves all of its pools.

The API server has no watch cache of events. Each list reads all events of a namespace from etcd, whatever it selects. A
node whose network fails leaves the pods of a thousand pools stuck at once, and each pool is reconciled every few
seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.errors import ApiError
from plumage_operator.observability.logs import cause
from plumage_operator.observed import Object, WarningEvent, meta

__all__ = ["WarningEvents"]

log = logging.getLogger(__name__)

_FRESH: Final = 5.0  # seconds that a list is used

_FAILED: Final = 30.0  # seconds without a retry after a failed list, so that pools do not load a failing server

_WITHIN: Final = 20.0

_OF_A_POD: Final = 3

_PODS: Final = 3  # of one pool: they have the same cause

_LONGEST: Final = 1_000  # characters of one message

_SELECTOR: Final = "involvedObject.kind=Pod,type=Warning"


@dataclass(frozen=True, slots=True)
class _Read:
    until: float
    by_pod: Mapping[str, tuple[WarningEvent, ...]]


class WarningEvents:
    """clock: monotonic seconds. ours: whether a pod belongs to a pool; events of other pods are not kept."""

    def __init__(self, api: KubeClient, clock: Callable[[], float], ours: Callable[[str, str], bool]) -> None:
        self._api = api
        self._clock = clock
        self._ours = ours
        self._read: dict[str, _Read] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    async def list_for(self, namespace: str, pods: Iterable[str]) -> tuple[WarningEvent, ...]:
        """Events of the first few of the pods that have any, newest first.

        Empty while events can't be listed: they only explain, and nothing waits for them.
        """
        self._drop_old()
        async with self._reading.setdefault(namespace, asyncio.Lock()):
            if namespace not in self._read:
                self._read[namespace] = await self._list(namespace)
            by_pod = self._read[namespace].by_pod
        troubled = [by_pod[pod] for pod in pods if pod in by_pod][:_PODS]
        return tuple(warning for pod in troubled for warning in pod)

    def _drop_old(self) -> None:
        """Drops lists that are too old, and locks of namespaces that nobody asks about."""
        now = self._clock()
        self._read = {namespace: read for namespace, read in self._read.items() if read.until > now}
        for namespace in [one for one, lock in self._reading.items() if one not in self._read and not lock.locked()]:
            del self._reading[namespace]

    async def _list(self, namespace: str) -> _Read:
        """Lists a namespace. The list's age starts when it is there, so a slow list also serves those who waited for
        it.
        """
        found: dict[str, list[tuple[str, WarningEvent]]] = {}
        serves = _FRESH
        try:
            async with asyncio.timeout(_WITHIN):
                async for page in self._api.list_pages("v1", "events", namespace, fields=_SELECTOR):
                    for event in page:
                        self._keep(namespace, event, found)
        except (ApiError, TimeoutError) as error:  # also a missing right, which must not fail the reconcile
            serves = _FAILED
            unread = "can't list the events of %s, which explain why pods don't start: %s"
            log.warning(unread, namespace, str(error) or "too slow", extra=cause("events", type(error).__name__))
        by_pod = {pod: tuple(warning for _, warning in events) for pod, events in found.items()}
        return _Read(self._clock() + serves, by_pod)

    def _keep(self, namespace: str, event: Object, found: dict[str, list[tuple[str, WarningEvent]]]) -> None:
        pod = str((event.get("involvedObject") or {}).get("name", ""))
        if not self._ours(namespace, pod):
            return
        warning = WarningEvent(pod, str(event.get("reason", "")), str(event.get("message", ""))[:_LONGEST])
        events = [*found.get(pod, ()), (_last_time(event), warning)]
        found[pod] = sorted(events, key=lambda one: one[0], reverse=True)[:_OF_A_POD]


def _last_time(event: Object) -> str:
    """When it was reported last. The new kind of events has other fields for this, and none if it was reported once."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), meta(event).get("creationTimestamp") or ""))
