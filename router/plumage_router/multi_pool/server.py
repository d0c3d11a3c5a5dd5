"""Runs the router of several pools: as the router of one pool, with pools that are added, changed and removed.

The configuration file names the pools. A change of a pool that can apply at runtime is applied. For any other change
the pool's parts are built again, and the old parts finish their requests. A pool may not be built, for example
without its model folder. The log, the metrics and its requests' errors report it, and the other pools are served.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from pydantic.alias_generators import to_camel

from plumage.cluster import LIVE_POOL_SETTINGS
from plumage.errors import ConfigurationError
from plumage.settings.router_config import MultiPoolConfig, NamedPoolConfig, SharedModelConfig
from plumage_router.admin.app import make_app
from plumage_router.admin.metrics_port import MetricsPort
from plumage_router.config import load_multi_pool
from plumage_router.http.auth import Auth, find_callers
from plumage_router.multi_pool.app import make_multi_pool_app
from plumage_router.multi_pool.dispatcher import PoolDispatcher
from plumage_router.multi_pool.metrics import multi_pool_metrics
from plumage_router.multi_pool.request_copies import most_copies
from plumage_router.multi_pool.split import Route
from plumage_router.pool_router import TICK, PoolRouter
from plumage_router.process.background import Background
from plumage_router.process.config_watch import FileWatch, merge, restart_needed
from plumage_router.request.model import load_model
from plumage_router.server import ROTATION, client_sockets, drain, name_of_router, raise_file_limit, tls_acceptor

__all__ = ["MultiPoolServer"]

log = logging.getLogger(__name__)

_RETRY_INTERVAL: Final = 10.0  # seconds between tries to build a broken pool, whose Secret may appear
_LIVE: Final = ("limits", "timeouts", "pools", "shared_models", "tracing")
"""The settings that apply at runtime."""
_LIVE_OF_POOL: Final = (*LIVE_POOL_SETTINGS, "names")
"""The settings of a pool that apply without building its parts again."""


class MultiPoolServer:
    """The router of several pools in one event loop. `await start()`, then `await stop()`.

    file: where `config` was read; it is read again when it changes.
    """

    def __init__(self, config: MultiPoolConfig, file: Path | None = None, *, name: str | None = None) -> None:
        self.config = config
        self._loop = loop = asyncio.get_running_loop()
        self.dispatcher = PoolDispatcher(
            config,
            Auth(config.auth, find_callers(config.auth, config.api_server)),
            name=name or name_of_router(config.router_id),
            application=make_multi_pool_app,
            loop=loop,
        )
        self.dispatcher.pause_accepting = lambda: loop.call_soon(self._sockets.pause)
        self.dispatcher.config_ignored = len(config.ignored)
        self._watch = FileWatch(file) if file is not None else None
        self.dispatcher.tls = tls_acceptor(config.listen, self.dispatcher, loop)
        self._sockets = client_sockets(config.listen, self.dispatcher, loop)
        self.metrics_port = MetricsPort(config.listen, lambda accept: multi_pool_metrics(self.dispatcher, accept), loop)
        self._background = Background(self.dispatcher.metrics)
        self._endings: set[asyncio.Task[None]] = set()
        self._retry_at = 0.0

    @property
    def addresses(self) -> list[str]:
        """The addresses: `HOST:PORT` or a path."""
        return self._sockets.addresses

    async def start(self) -> None:
        acceptors, copies = len(self.dispatcher.tls_acceptors), most_copies(self.config.limits)
        raise_file_limit(self.config.limits, acceptors=acceptors, more=copies)
        await self.reconfigure(self.config)
        await self._sockets.start()
        await self.metrics_port.start()
        self._background.start(self._tick, self._rotate)
        addresses, number = ", ".join(self.addresses), len(self.dispatcher.pools)
        log.info("gateway %s: %d pools, listening on %s", self.config.gateway, number, addresses)

    async def leave(self) -> None:
        """Still serves requests, but is not ready and keeps no connection alive."""
        if self.config.timeouts.leave:
            self.dispatcher.leave()
            await asyncio.sleep(self.config.timeouts.leave)

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stops accepting, waits for requests up to `drain_seconds`, and closes everything."""
        self.dispatcher.close()
        self._sockets.stop()
        self.metrics_port.stop()
        seconds = self.config.timeouts.drain if drain_seconds is None else drain_seconds
        await drain(self.dispatcher, seconds, self.dispatcher.turn_away)
        self.dispatcher.copies.cancel()
        await self._background.stop()
        for task in self._endings:
            task.cancel()
        pools = self.dispatcher.pools.values()
        await asyncio.gather(*self._endings, *(pool.close() for pool in pools), return_exceptions=True)
        await asyncio.sleep(0)  # lets the aborted transports call their protocols
        self.dispatcher.close_access_log()
        await self.dispatcher.tracing.close()

    async def reconfigure(self, config: MultiPoolConfig) -> None:
        """Applies these pools, and these bounds of the port."""
        dispatcher = self.dispatcher
        self.config = config
        dispatcher.limits, dispatcher.timeouts = config.limits, config.timeouts
        dispatcher.copies.most = most_copies(config.limits)
        await dispatcher.tracing.follow(config.tracing)
        dispatcher.body_memory.resize(config.limits.max_buffered_bytes)
        wanted = {pool.pool for pool in config.pools}
        dispatcher.broken = {name: why for name, why in dispatcher.broken.items() if name in wanted}
        for name in [name for name in dispatcher.pools if name not in wanted]:
            self._remove(name)
        dispatcher.routes = {
            name: route for name, route in dispatcher.routes.items() if any(pool in wanted for pool, _ in route.shares)
        }
        for pool in config.pools:
            await self._apply(pool)
        dispatcher.routes = _routes(config)

    async def _apply(self, config: NamedPoolConfig) -> None:
        """Changes or builds one pool. A pool that cannot be built becomes broken."""
        broken = self.dispatcher.broken
        try:
            if not self._change(config):
                await self._build(config)
        except ConfigurationError as error:
            if broken.get(config.pool) != str(error):
                log.warning("pool %s is not served: %s", config.pool, error)
            broken[config.pool] = str(error)
            self._retry_at = self._loop.time() + _RETRY_INTERVAL
        else:
            broken.pop(config.pool, None)

    def _change(self, config: NamedPoolConfig) -> bool:
        """Changes a pool at runtime. Returns False if its parts must be built again."""
        pool = self.dispatcher.pools.get(config.pool)
        if pool is None:
            return False
        merged, refused = merge(pool.config, config, _LIVE_OF_POOL)
        if refused:
            return False
        if merged != pool.config:
            pool.reconfigure(merged)
        return True

    async def _build(self, config: NamedPoolConfig) -> None:
        """Builds a pool. A thread reads its tokenizer, which may take a second, while other streams continue."""
        dispatcher = self.dispatcher
        pool = PoolRouter(
            config,
            await asyncio.to_thread(load_model, config.model),
            name=dispatcher.name,
            auth=dispatcher.auth,
            tracing=dispatcher.tracing,
            application=make_app,
            loop=self._loop,
        )
        pool.prepare()
        pool.start()
        self._remove(config.pool)
        pool.time_slicer = dispatcher.time_slicer
        pool.leaving, pool.serving = dispatcher.leaving, dispatcher.serving
        dispatcher.pools[config.pool] = pool
        log.info("pool %s: served as %s", config.pool, ", ".join(config.names))

    def _remove(self, name: str) -> None:
        """Sends the pool nothing new. It closes once its requests have ended."""
        pool = self.dispatcher.pools.pop(name, None)
        if pool is None:
            return
        self.dispatcher.ending.add(pool)
        self.dispatcher.copies.cancel(pool)
        pool.leaving = True
        pool.turn_away_waiting("its pool is no longer served here")
        task = self._loop.create_task(self._end(pool))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        log.info("pool %s: no longer served", name)

    async def _end(self, pool: PoolRouter) -> None:
        deadline = self._loop.time() + pool.config.timeouts.drain
        try:
            while pool.in_flight and self._loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(TICK)
            for request in tuple(pool.in_flight):
                request.expire()
        finally:
            self.dispatcher.ending.discard(pool)
            await pool.close()

    async def _tick(self) -> None:
        dispatcher = self.dispatcher
        while True:
            await asyncio.sleep(TICK)
            dispatcher.sweep()
            await self.metrics_port.check()
            if not self._sockets.accepting and dispatcher.serving and dispatcher.can_accept:
                await self._sockets.accept()

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATION)
            self.dispatcher.refresh_keys()
            await self._check_file()
            if self.dispatcher.broken and self._loop.time() >= self._retry_at:
                await self._retry_broken()
            for pool in self.dispatcher.pools.values():
                pool.engines.refresh()

    async def _retry_broken(self) -> None:
        """Tries to build broken pools again: the cause may be in a file that is not watched."""
        for pool in [pool for pool in self.config.pools if pool.pool in self.dispatcher.broken]:
            await self._apply(pool)

    async def _check_file(self) -> None:
        """Applies the configuration file if it changed."""
        watch = self._watch
        if watch is None or not watch.changed():
            return
        try:
            config = load_multi_pool(watch.path)
        except ConfigurationError as error:
            watch.refuse(error)
        else:
            fixed = [name for name in MultiPoolConfig.model_fields if name not in _LIVE]
            refused = [name for name in fixed if getattr(config, name) != getattr(self.config, name)]
            await self.reconfigure(config.model_copy(update={name: getattr(self.config, name) for name in refused}))
            watch.report(restart_needed([to_camel(name) for name in refused]))
            self.dispatcher.config_ignored = len(config.ignored)
        self.dispatcher.config_error = watch.error


def _routes(config: MultiPoolConfig) -> dict[str, Route]:
    """Returns the pools of each model name."""
    own = {name: Route(((pool.pool, 1),)) for pool in config.pools for name in pool.names}
    shared = {
        model.name: Route(tuple((share.pool, share.weight) for share in model.pools), model.fallback or "", *mirror)
        for model in config.shared_models
        for mirror in [_mirror(model)]
    }
    return own | shared


def _mirror(model: SharedModelConfig) -> tuple[str, int]:
    """Returns the pool that gets copies, and of how many percent of the conversations."""
    mirror = model.request_mirror
    return ("", 0) if mirror is None else (mirror.pool, mirror.percent)
