"""Keeps a copy of the API server's list of objects: one list request, then a watch from there.

Contract: a failure never empties `objects`, because a stale list is better than none. `error` is the current failure.
A watch lasts `WATCH` seconds and then starts again, so a frozen one is noticed soon. After 410 (the version is too old)
the objects are listed again. The back-off after failures grows up to `LONGEST` and is random, so that the routers of a
pool do not return at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from plumage.api_server import ApiServerError
from plumage.backoff import Backoff
from plumage.incluster.api import ApiServer

__all__ = ["Follower"]

log = logging.getLogger(__name__)

WATCH: Final = 30  # seconds
SHORTEST, LONGEST = 0.25, 20.0  # seconds: the first wait, and the bound of those after more failures
GONE: Final = 410

Object = Mapping[str, Any]


class Follower:
    """changed: called after each change, and after the first list even if it is empty.

    what: the objects' name in the log and in `error`, such as "EndpointSlices of chat-engine"."""

    def __init__(
        self,
        api: ApiServer,
        path: str,
        selector: str,
        changed: Callable[[], None],
        *,
        what: str,
        rng: random.Random,
        watch_seconds: int = WATCH,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.error: str | None = f"{what}: not listed yet"
        self.listed = False
        self.lists = 0
        self._api = api
        self._path = path
        self._selector = {"labelSelector": selector}
        self._changed = changed
        self._what = what
        self._seconds = watch_seconds
        self._version: str | None = None
        self._backoff = Backoff(rng, SHORTEST, LONGEST)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version or "")
            except ApiServerError as error:
                if error.status == GONE:
                    self._version = None
                else:
                    self._complain(str(error))
                await asyncio.sleep(self._backoff.next())

    async def _list(self) -> None:
        found = await self._api.get(self._path, self._selector)
        try:
            objects = {str(one["metadata"]["name"]): one for one in found["items"]}
            version = str(found["metadata"]["resourceVersion"])
        except (KeyError, TypeError) as error:
            raise ApiServerError(f"the API server's answer to {self._path} is no list") from error
        self.objects, self._version, self.listed = objects, version, True
        self.lists += 1
        self._fine()
        self._changed()

    async def _watch(self, version: str) -> None:
        """Runs one watch until the server ends it. One that ends at once is no failure, but the next one waits."""
        began = asyncio.get_running_loop().time()
        params = {**self._selector, "resourceVersion": version}
        async for event in self._api.watch(self._path, self._seconds, params):
            self._take(event)
            self._fine()
        self.error = None
        if asyncio.get_running_loop().time() - began < 1.0:
            await asyncio.sleep(self._backoff.next())
        else:
            self._fine()

    def _take(self, event: Object) -> None:
        kind, found = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiServerError(f"the watch ended: {found.get('message')}", int(found.get("code") or 0))
        metadata = found.get("metadata") or {}
        self._version = metadata.get("resourceVersion", self._version)
        name = metadata.get("name")
        if kind == "BOOKMARK" or not name:
            return
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = found
        self._changed()

    def _fine(self) -> None:
        if self.error is not None and self.listed:
            log.info("%s: followed", self._what)
        self.error = None
        self._backoff.reset()

    def _complain(self, reason: str) -> None:
        error = f"{self._what}: {reason}"
        if error != self.error:
            log.warning("%s; keeping what was known before", error)
        self.error = error
