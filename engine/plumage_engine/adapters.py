"""The LoRA adapters of an engine: makes it serve those that its agent asks for (`POST /v1/plumage/adapters`).

The agent sends all adapters at once, again and again, so a restarted engine gets them too. Files are fetched and
adapters loaded in the background, one at a time, while the engine computes. An adapter that cannot be loaded is tried
again a minute later. If another source is wanted for a name, the old one is served until the new one is there.

vLLM and the simulator each have an `AdapterServer`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from plumage.errors import PlumageError

__all__ = ["AdapterError", "AdapterLoader", "AdapterServer", "parse_wanted"]

log = logging.getLogger("vllm.plumage")

AGAIN: Final = 60.0  # seconds until a failed adapter is tried again: a hub may be back
MOST: Final = 256  # adapters; a manifest has 64, and others may be about to leave
_LONGEST: Final = 500  # characters of a message


class AdapterError(PlumageError):
    """An adapter can't be fetched or loaded; the message says why."""


class AdapterServer(Protocol):
    """An engine that serves adapters."""

    def sources(self) -> Mapping[str, str]:
        """The served adapters by name, each with what it was loaded from; "" where that is unknown."""
        ...

    async def fetch(self, source: str) -> str:
        """The adapter's folder, after a download where `source` is a repository. AdapterError if there is none."""
        ...

    async def load(self, name: str, source: str, folder: str) -> None:
        """Serve the adapter, in place of one that has the name. AdapterError if the engine refuses it; then the old one
        is still served."""
        ...

    async def unload(self, name: str) -> None:
        """Take no further requests for it. Those in flight finish."""
        ...


class AdapterLoader:
    """clock: seconds."""

    def __init__(self, server: AdapterServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._wanted: dict[str, str] = {}
        self._failed: dict[str, tuple[str, str, float]] = {}  # source, message, when to try again
        self._task: asyncio.Task[None] | None = None

    async def want(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Serve these adapters and no others. wanted: the source of each by name: a folder, or a repository.

        It returns at once. `adapters`: name, state (Loaded, Loading, Failed) and message of each. `served`: the names
        that requests may have now.
        """
        self._wanted = dict(wanted)
        await self._unload_others()
        if self._next() is not None and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._load_all(), name="adapters")
        served = self._server.sources()
        return {"adapters": [self._report(name) for name in self._wanted], "served": sorted(served)}

    async def _unload_others(self) -> None:
        for name in [name for name in self._server.sources() if name not in self._wanted]:
            await self._server.unload(name)
            log.info("plumage: adapter %s is no longer served", name)

    async def _load_all(self) -> None:
        """Until every wanted adapter is loaded or has failed."""
        while (found := self._next()) is not None:
            name, source = found
            try:
                folder = await self._server.fetch(source)
                await self._server.load(name, source, folder)
            except AdapterError as error:
                self._fail(name, source, str(error))
            except Exception as error:
                log.exception("plumage: adapter %s", name)
                self._fail(name, source, f"{type(error).__name__}: {error}")
            else:
                self._failed.pop(name, None)
                log.info("plumage: adapter %s is served, from %s", name, source)
            await self._unload_others()  # it may not be wanted any more

    def _fail(self, name: str, source: str, message: str) -> None:
        message = " ".join(message.split())[:_LONGEST]
        log.warning("plumage: adapter %s cannot be loaded: %s", name, message)
        self._failed[name] = (source, message, self._clock() + AGAIN)

    def _next(self) -> tuple[str, str] | None:
        """The next adapter to load, with its source."""
        served, now = self._server.sources(), self._clock()
        for name, source in self._wanted.items():
            failed, _, again = self._failed.get(name, ("", "", 0.0))
            if served.get(name) not in ("", source) and (failed != source or now >= again):
                return name, source
        return None

    def _report(self, name: str) -> dict[str, str]:
        source = self._wanted[name]
        if self._server.sources().get(name) in ("", source):
            return {"name": name, "state": "Loaded", "message": ""}
        failed, message, _ = self._failed.get(name, ("", "", 0.0))
        if failed == source:
            return {"name": name, "state": "Failed", "message": message}
        return {"name": name, "state": "Loading", "message": ""}


def parse_wanted(body: bytes) -> dict[str, str]:
    """The `adapters` of a request's body. ValueError if it has another form."""
    try:
        wanted = json.loads(body)["adapters"]
    except (KeyError, TypeError, ValueError, RecursionError):
        wanted = None
    named = isinstance(wanted, dict) and all(isinstance(one, str) and one for one in (*wanted, *wanted.values()))
    if not named or len(wanted) > MOST:
        raise ValueError(f'the body must be {{"adapters": {{"NAME": "FOLDER OR REPOSITORY"}}}}, with at most {MOST}')
    return dict(wanted)
