"""A front's life: as a router's, with pools that come, change and go under it.

The configuration file is the one source of which pools there are. What changed of a pool is taken live where a router
of one pool takes it live; else its parts are made anew, and what is under way ends in the old ones. A pool that can't
be made (its model's folder is missing, say) is told in the log, the metrics and the errors of its requests, and keeps
none of the others from being served.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from pydantic.alias_generators import to_camel

from plumage.cluster import LIVE_ROUTER_SETTINGS
from plumage.errors import ConfigurationError
from plumage_router.auth import Auth
from plumage_router.backend import Backend
from plumage_router.background import Background
from plumage_router.client import ClientConnection
from plumage_router.front.app import make_front_app
from plumage_router.front.config import FrontConfig, FrontPool, load_front
from plumage_router.front.host import Front
from plumage_router.front.metrics import front_metrics
from plumage_router.gateway import TICK
from plumage_router.incluster import find_callers
from plumage_router.listening import Listening
from plumage_router.live import FileWatch, merge, only_anew
from plumage_router.model import load_model
from plumage_router.scrape import Scrape
from plumage_router.server import ROTATION, drained, name_of_router, raise_file_limit

__all__ = ["FrontRouter"]

log = logging.getLogger(__name__)

_AGAIN: Final = 10.0  # seconds between tries of a pool that can't be served: its Secret may come
_LIVE: Final = ("limits", "timeouts", "pools")
"""What is taken from a changed file."""
_LIVE_OF_POOL: Final = (*LIVE_ROUTER_SETTINGS, "names")
"""And of a pool, without making its parts anew."""


class FrontRouter:
    """One front in one event loop. `await start()`, then `await stop()`. file: where `config` was read, to be read
    again when it changes."""

    def __init__(self, config: FrontConfig, file: Path | None = None, *, name: str | None = None) -> None:
        self.config = config
        self.backends: dict[str, Backend] = {}
        self._loop = loop = asyncio.get_running_loop()
        self.front = Front(
            config,
            Auth(config.auth, find_callers(config.auth, config.api_server)),
            name=name or name_of_router(config.router_id),
            application=make_front_app,
            pause_accepting=lambda: loop.call_soon(self._listening.pause),
            loop=loop,
        )
        self.front.config_ignored = len(config.ignored)
        self._watch = FileWatch(file) if file is not None else None
        self._listening = Listening(config.listen, lambda: ClientConnection(self.front, loop), loop)
        self.scrape = Scrape(config.listen, lambda accept: front_metrics(self.front, accept), loop)
        self._background = Background(self.front.metrics)
        self._endings: set[asyncio.Task[None]] = set()
        self._again = 0.0

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `HOST:PORT` or a path."""
        return self._listening.addresses

    async def start(self) -> None:
        raise_file_limit(self.config.limits)
        await self.use(self.config)
        await self._listening.begin()
        await self.scrape.begin()
        self._background.begin(self._tick, self._rotate)
        told = ", ".join(self.addresses)
        log.info("gateway %s: %d pools, listening on %s", self.config.gateway, len(self.backends), told)

    async def leave(self) -> None:
        """Still serves everybody, but says that it is not ready and keeps no connection."""
        if self.config.timeouts.leave:
            self.front.leave()
            await asyncio.sleep(self.config.timeouts.leave)

    async def stop(self, drain: float | None = None) -> None:
        """Stops accepting, waits for what is under way up to `drain` seconds, closes everything."""
        self.front.close()
        self._listening.end()
        self.scrape.end()
        patience = self.config.timeouts.drain if drain is None else drain
        await drained(self.front, patience, self.front.turn_away)
        await self._background.end()
        for task in self._endings:
            task.cancel()
        await asyncio.gather(*self._endings, *(backend.close() for backend in self.backends.values()),
                             return_exceptions=True)  # fmt: skip
        await asyncio.sleep(0)  # lets the aborted transports tell their protocols
        self.front.end_access_log()

    async def use(self, config: FrontConfig) -> None:
        """These pools from now on, with these bounds of the port."""
        self.config = config
        self.front.limits, self.front.timeouts = config.limits, config.timeouts
        self.front.room.use(config.limits.max_buffered_bytes)
        wanted = {pool.pool for pool in config.pools}
        self.front.broken = {name: why for name, why in self.front.broken.items() if name in wanted}
        for name in [name for name in self.backends if name not in wanted]:
            self._end(name)
        self.front.names = {name: pool for name, pool in self.front.names.items() if pool in wanted}
        for pool in config.pools:
            await self._bring(pool)
        self.front.names = {name: pool.pool for pool in config.pools for name in pool.names}

    async def _bring(self, pool: FrontPool) -> None:
        try:
            if not self._adapt(pool):
                await self._begin(pool)
        except ConfigurationError as error:
            if self.front.broken.get(pool.pool) != str(error):
                log.warning("pool %s is not served: %s", pool.pool, error)
            self.front.broken[pool.pool] = str(error)
            self._again = self._loop.time() + _AGAIN
        else:
            self.front.broken.pop(pool.pool, None)

    def _adapt(self, pool: FrontPool) -> bool:
        """Whether the parts there are can serve the pool as it is wanted now."""
        backend = self.backends.get(pool.pool)
        if backend is None:
            return False
        config, refused = merge(backend.config, pool, _LIVE_OF_POOL)
        if refused:
            return False
        if config != backend.config:
            backend.use(config)
        return True

    async def _begin(self, pool: FrontPool) -> None:
        """A tokenizer may take a second to read, in which the other pools' streams must go on."""
        backend = Backend(
            pool,
            await asyncio.to_thread(load_model, pool.model),
            name=self.front.name,
            auth=self.front.auth,
            pause_accepting=lambda: None,
            loop=self._loop,
        )
        backend.prepare()
        backend.start()
        self._end(pool.pool)
        self.backends[pool.pool] = backend
        backend.gateway.pieces = self.front.pieces
        backend.gateway.leaving, backend.gateway.serving = self.front.leaving, self.front.serving
        self.front.gateways[pool.pool] = backend.gateway
        log.info("pool %s: served as %s", pool.pool, ", ".join(pool.names))

    def _end(self, name: str) -> None:
        """Nothing new goes to these parts of the pool; they close once what is under way there has ended."""
        backend, gateway = self.backends.pop(name, None), self.front.gateways.pop(name, None)
        if backend is None or gateway is None:
            return
        self.front.ending.add(gateway)
        gateway.leaving = True
        gateway.hold.close("its pool is no longer served here")
        task = self._loop.create_task(self._ended(backend))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        log.info("pool %s: served no longer", name)

    async def _ended(self, backend: Backend) -> None:
        gateway, deadline = backend.gateway, self._loop.time() + backend.config.timeouts.drain
        try:
            while gateway.flights and self._loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(TICK)
            for flight in tuple(gateway.flights):
                flight.expire()
        finally:
            self.front.ending.discard(gateway)
            await backend.close()

    async def _tick(self) -> None:
        front = self.front
        while True:
            await asyncio.sleep(TICK)
            front.sweep()
            await self.scrape.look()
            if not self._listening.accepting and front.serving and front.has_room:
                await self._listening.accept()

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATION)
            self.front.auth.refresh()
            await self._look()
            if self.front.broken and self._loop.time() >= self._again:
                await self._mend()
            for backend in self.backends.values():
                backend.rotate()

    async def _mend(self) -> None:
        """Tries those again that can't be served; what was wrong may stand in no file that is watched."""
        for pool in [pool for pool in self.config.pools if pool.pool in self.front.broken]:
            await self._bring(pool)

    async def _look(self) -> None:
        """Takes the file in if it changed."""
        watch = self._watch
        if watch is None or not watch.changed():
            return
        try:
            config = load_front(watch.path)
        except ConfigurationError as error:
            watch.refuse(error)
        else:
            fixed = [name for name in FrontConfig.model_fields if name not in _LIVE]
            refused = [name for name in fixed if getattr(config, name) != getattr(self.config, name)]
            await self.use(config.model_copy(update={name: getattr(self.config, name) for name in refused}))
            watch.complain(only_anew([to_camel(name) for name in refused]))
            self.front.config_ignored = len(config.ignored)
        self.front.config_error = watch.error
