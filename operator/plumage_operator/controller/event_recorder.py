"""Writes events on a pool. A repeated event is counted, because its name is a hash of its content."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from plumage.cluster import MANAGED_BY
from plumage_operator.controller.actions import EmitEvent
from plumage_operator.kube.client import KubeClient, resource_path
from plumage_operator.kube.errors import ApiError, ConflictError, GoneError, is_namespace_ending
from plumage_operator.observability.logs import cause
from plumage_operator.observed import Object, digest, meta
from plumage_operator.status.conditions import timestamp

__all__ = ["EventRecorder"]

log = logging.getLogger(__name__)

_REMEMBERED: Final = 5_000  # events whose count is kept

_LONGEST: Final = 1_000  # characters; the API server refuses more than 1,024


class EventRecorder:
    """clock: seconds since 1970. instance: the name of this operator."""

    def __init__(self, api: KubeClient, clock: Callable[[], float], instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def record(self, thing: Object, event: EmitEvent) -> None:
        """Writes an event about `thing`.

        An event that can't be written is logged and dropped: events often have a store of their own, and reconciles
        must not wait for it. In a namespace that is being deleted nobody would read it.
        """
        name = f"{str(meta(thing)['name'])[:200]}.{digest([meta(thing).get('uid'), event.reason, event.message])}"
        count = self._counts.get(name, 0) + 1
        namespace = str(meta(thing)["namespace"])
        try:
            count = await self._write(thing, namespace, name, event, count)
        except GoneError:
            return
        except ApiError as error:
            if not is_namespace_ending(error):
                message = "%s/%s: the event could not be written: %s: %s (%s)"
                why = cause("event", type(error).__name__, error.status)
                log.warning(message, namespace, meta(thing)["name"], event.reason, event.message, error, extra=why)
            return
        self._remember(name, count)

    async def _write(self, thing: Object, namespace: str, name: str, event: EmitEvent, count: int) -> int:
        """Creates or counts the event. Returns how often it was emitted."""
        if count > 1:
            try:
                await self._count(namespace, name, count)
                return count
            except GoneError:  # Kubernetes deletes events after an hour
                count = 1
        try:
            await self._create(thing, namespace, name, event)
        except ConflictError:  # an earlier operator wrote it
            count = 2
            await self._count(namespace, name, count)
        return count

    async def _create(self, thing: Object, namespace: str, name: str, event: EmitEvent) -> None:
        now = timestamp(self._clock())
        about = {key: meta(thing)[key] for key in ("name", "namespace", "uid") if key in meta(thing)}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"apiVersion": thing["apiVersion"], "kind": thing["kind"], **about},
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_LONGEST],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": MANAGED_BY},
            "reportingComponent": MANAGED_BY,
            "reportingInstance": self._instance,
        }
        await self._api.request("POST", resource_path("v1", "events", namespace), body=body)

    async def _count(self, namespace: str, name: str, count: int) -> None:
        body = {"count": count, "lastTimestamp": timestamp(self._clock())}
        path = resource_path("v1", "events", namespace, name)
        await self._api.request("PATCH", path, body=body, content="application/merge-patch+json")

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
