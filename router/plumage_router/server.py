"""A router's life: build the parts, listen, keep the background tasks running, drain, leave nothing behind.

Accepting is paused when connections pass their bound by more than a few (the system's queue then holds newcomers back).
SIGTERM and SIGINT stop accepting, let what is under way finish up to the drain timeout, and then cut it off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from plumage.open_files import files_of_router
from plumage_router.allocator import map_large_blocks
from plumage_router.auth import Auth
from plumage_router.backend import Backend
from plumage_router.background import Background
from plumage_router.client import ClientConnection
from plumage_router.collector import settle
from plumage_router.config import LimitsConfig, RouterConfig
from plumage_router.entrance import Entrance
from plumage_router.gateway import TICK
from plumage_router.incluster import find_callers
from plumage_router.listening import Listening
from plumage_router.live import ConfigWatch
from plumage_router.model import load_model
from plumage_router.scrape import Scrape
from plumage_router.status import metrics_page

__all__ = ["ROTATION", "Life", "Router", "drained", "name_of_router", "raise_file_limit", "run", "serve"]

log = logging.getLogger(__name__)

LAST = 1.0  # seconds before the end of a drain in which requests that are held are told to come back
ROTATION = 2.0  # seconds between looks at key files


class Router:
    """One router in one event loop. `await start()`, then `await stop()`. file: where `config` was read, to be read
    again when it changes. name: among its peers, before what `config` says."""

    def __init__(self, config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
        self.config = config
        self._loop = loop = asyncio.get_running_loop()
        self.backend = Backend(
            config,
            load_model(config.model),
            name=name or name_of_router(config.router_id),
            auth=Auth(config.auth, find_callers(config.auth, config.api_server)),
            pause_accepting=lambda: loop.call_soon(self._listening.pause),
            loop=loop,
        )
        self.gateway, self.fleet, self.membership = self.backend.gateway, self.backend.fleet, self.backend.membership
        self.directory = self.backend.directory
        self.gateway.config_ignored = len(config.ignored)
        self._watch = ConfigWatch(file, config, self.use) if file is not None else None
        self._listening = Listening(config.listen, lambda: ClientConnection(self.gateway, loop), loop)
        self.scrape = Scrape(config.listen, lambda accept: metrics_page(self.gateway, accept), loop)
        self._background = Background(self.gateway.metrics)

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `HOST:PORT` or a path."""
        return self._listening.addresses

    async def start(self) -> None:
        raise_file_limit(self.config.limits)
        self.backend.prepare()
        await self._listening.begin()
        await self.scrape.begin()
        self.backend.start()
        self._background.begin(self._tick, self._rotate)
        log.info("pool %s: listening on %s", self.config.pool, ", ".join(self.addresses))

    def use(self, config: RouterConfig) -> None:
        """Another configuration, for what can be changed live. ConfigurationError where its policy can't work."""
        self.backend.use(config)
        self.config = config
        raise_file_limit(config.limits)

    async def leave(self) -> None:
        """Still serves everybody, but says that it is not ready and keeps no connection: those who send here need a
        while to hear of it."""
        if self.config.timeouts.leave:
            self.gateway.leaving = True
            await asyncio.sleep(self.config.timeouts.leave)

    async def stop(self, drain: float | None = None) -> None:
        """Stops accepting, waits for what is under way up to `drain` seconds, closes everything."""
        self.gateway.serving = False
        self._listening.end()
        self.scrape.end()
        await drained(self.gateway, self.config.timeouts.drain if drain is None else drain, self.gateway.hold.close)
        await self._background.end()
        await self.backend.close()
        await asyncio.sleep(0)  # lets the aborted transports tell their protocols

    async def _tick(self) -> None:
        gateway = self.gateway
        while True:
            await asyncio.sleep(TICK)
            gateway.sweep()
            await self.scrape.look()
            if not self._listening.accepting and gateway.serving and gateway.has_room:
                await self._listening.accept()

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATION)
            self.gateway.auth.refresh()
            if self._watch is not None:
                self._watch.look()
                self.gateway.config_error = self._watch.error
                self.gateway.config_ignored = len(self._watch.ignored)
            self.backend.rotate()


def name_of_router(given: str | None) -> str:
    """Among its peers: no two may have one name."""
    return given or f"{socket.gethostname()}-{os.getpid()}"


async def drained(entrance: Entrance, patience: float, turn_away: Callable[[], None]) -> None:
    """Waits until the last connection is gone, up to `patience` seconds; the others are cut off then. turn_away: tells
    those that are held that their wait is in vain."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while entrance.connections and loop.time() < deadline:
        for connection in tuple(entrance.connections):
            connection.close_when_idle()
        if loop.time() > deadline - LAST:
            turn_away()
        await asyncio.sleep(0.02)
    if entrance.connections:
        log.warning("drain timeout: cutting off %d connections", len(entrance.connections))
    for connection in tuple(entrance.connections):
        connection.transport.abort()


def raise_file_limit(limits: LimitsConfig) -> None:
    """Open files for that many connections, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_of_router(limits.max_connections, limits.max_in_flight)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < wanted:
        log.warning(
            "at most %s open files are allowed, %s may be needed: raise the hard limit (ulimit -Hn), or lower "
            "maxConnections and maxInFlight",
            f"{soft:,}", f"{wanted:,}",
        )  # fmt: skip


class Life(Protocol):
    """A router, or a front of several pools."""

    async def start(self) -> None: ...

    async def leave(self) -> None: ...

    async def stop(self, drain: float | None = None) -> None: ...


async def serve(config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
    """Runs a router until SIGTERM or SIGINT."""
    await run(Router(config, file, name=name))


async def run(life: Life) -> None:
    """From its start until SIGTERM or SIGINT, and its orderly end."""
    map_large_blocks()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await life.start()
    settle()
    await stopping.wait()
    await life.leave()
    await life.stop()
