"""The LoRA adapters of an engine: makes it serve those that its agent asks for (`POST /v1/plumage/adapters`).

The agent sends all adapters at once, again and again, so a restarted engine gets them too. Adapters are fetched in the
background, a few at a time, each within `FETCH_SECONDS`, and loaded one at a time, while the engine computes. A slow
download delays no other change. One that is no longer wanted is dropped. If another source is wanted for a name, the
old one is served until the new one is there.

What cannot be fetched is tried again a minute later, because a hub may be back. What the engine refuses to load is
tried again after a minute, then two, and so on up to `LONGEST_AGAIN`.

vLLM and the simulator each have an `AdapterServer`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from plumage.errors import PlumageError

__all__ = ["AdapterError", "AdapterLoader", "AdapterServer", "parse_wanted"]

log = logging.getLogger("vllm.plumage")

AGAIN: Final = 60.0  # seconds until a failed adapter is tried again
LONGEST_AGAIN: Final = 1800.0  # after several refusals of the engine
FETCH_SECONDS: Final = 600.0  # for a download; an adapter has some hundred MB at most
DOWNLOADS: Final = 2  # at a time
_FOLDERS: Final = 4  # looked at at a time; a network file system may hang
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


@dataclass(frozen=True, slots=True)
class _Failure:
    """refusals: of the engine, in a row. again: when to try again."""

    source: str
    message: str
    refusals: int
    again: float


@dataclass(slots=True, eq=False)
class _Work:
    """The fetch and load of one adapter. loading: the engine loads it, which is not cancelled."""

    source: str
    loading: bool = False
    task: asyncio.Task[None] | None = None


class AdapterLoader:
    """clock: seconds. fetch_seconds: for a fetch."""

    def __init__(
        self,
        server: AdapterServer,
        clock: Callable[[], float] = time.monotonic,
        fetch_seconds: float = FETCH_SECONDS,
    ) -> None:
        self._server = server
        self._clock = clock
        self._fetch_seconds = fetch_seconds
        self._wanted: dict[str, str] = {}
        self._failed: dict[str, _Failure] = {}  # of wanted sources only
        self._work: dict[str, _Work] = {}
        self._downloads = asyncio.Semaphore(DOWNLOADS)
        self._folders = asyncio.Semaphore(_FOLDERS)
        self._one_load = asyncio.Lock()

    async def want(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Serve these adapters and no others. wanted: the source of each by name: a folder, or a repository.

        It returns at once. `adapters`: name, state (Loaded, Loading, Failed) and message of each. `served`: the names
        that requests may have now.
        """
        self._wanted = dict(wanted)
        self._failed = {name: one for name, one in self._failed.items() if wanted.get(name) == one.source}
        self._drop_unwanted()
        await self._unload_others()
        self._start()
        served = self._server.sources()
        return {"adapters": [self._report(name) for name in self._wanted], "served": sorted(served)}

    def _drop_unwanted(self) -> None:
        for name, work in list(self._work.items()):
            if self._wanted.get(name) != work.source and not work.loading:
                if work.task is not None:
                    work.task.cancel()
                del self._work[name]

    async def _unload_others(self) -> None:
        for name in [name for name in self._server.sources() if name not in self._wanted]:
            await self._server.unload(name)
            log.info("plumage: adapter %s is no longer served", name)

    def _start(self) -> None:
        """Start on each adapter that is neither served nor waits for its next try."""
        now = self._clock()
        for name, source in self._wanted.items():
            failed = self._failed.get(name)
            if name in self._work or self._is_served(name) or (failed is not None and now < failed.again):
                continue
            work = self._work[name] = _Work(source)
            work.task = asyncio.create_task(self._fetch_and_load(name, work), name=f"adapter {name}")

    async def _fetch_and_load(self, name: str, work: _Work) -> None:
        try:
            folder = await self._fetch(name, work.source)
            if folder is not None:
                async with self._one_load:
                    work.loading = True
                    await self._load(name, work.source, folder)
        finally:
            if self._work.get(name) is work:
                del self._work[name]
        await self._unload_others()  # it may not be wanted any more,
        self._start()  # or from another source

    async def _fetch(self, name: str, source: str) -> str | None:
        """Returns the adapter's folder; None after a failure."""
        try:
            async with self._folders if source.startswith("/") else self._downloads:
                async with asyncio.timeout(self._fetch_seconds):
                    return await self._server.fetch(source)
        except TimeoutError:
            self._fail(name, source, f"it could not be fetched within {self._fetch_seconds:g} s")
        except Exception as error:
            self._fail(name, source, _text(name, error))
        return None

    async def _load(self, name: str, source: str, folder: str) -> None:
        try:
            await self._server.load(name, source, folder)
        except Exception as error:
            self._fail(name, source, _text(name, error), refused=True)
        else:
            self._failed.pop(name, None)
            log.info("plumage: adapter %s is served, from %s", name, source)

    def _fail(self, name: str, source: str, message: str, *, refused: bool = False) -> None:
        """refused: by the engine."""
        message = " ".join(message.split())[:_LONGEST]
        log.warning("plumage: adapter %s cannot be loaded: %s", name, message)
        if self._wanted.get(name) != source:
            return
        before = self._failed.get(name)
        refusals = (0 if before is None else before.refusals) + refused
        wait = min(LONGEST_AGAIN, AGAIN * 2.0 ** min(refusals - 1, 16)) if refused else AGAIN
        self._failed[name] = _Failure(source, message, refusals, self._clock() + wait)

    def _is_served(self, name: str) -> bool:
        return self._server.sources().get(name) in ("", self._wanted[name])

    def _report(self, name: str) -> dict[str, str]:
        if self._is_served(name):
            return {"name": name, "state": "Loaded", "message": ""}
        failed = self._failed.get(name)
        if failed is not None:
            return {"name": name, "state": "Failed", "message": failed.message}
        return {"name": name, "state": "Loading", "message": ""}


def _text(name: str, error: Exception) -> str:
    if isinstance(error, AdapterError):
        return str(error)
    log.error("plumage: adapter %s", name, exc_info=error)
    return f"{type(error).__name__}: {error}"


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
