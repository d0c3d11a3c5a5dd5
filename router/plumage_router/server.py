"""Runs a router process: builds its parts, listens, runs the background tasks, drains and stops.

When far too many connections are open, accepting is paused and new ones wait in the system's queue. SIGTERM and SIGINT
stop accepting, let requests finish until the drain timeout, and then cut them off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from plumage.open_files import files_of_router
from plumage.settings.router_config import LimitsConfig, ListenConfig, RouterConfig
from plumage_router.admin.app import make_app
from plumage_router.admin.metrics_port import MetricsPort
from plumage_router.admin.status import metrics_page
from plumage_router.http.auth import Auth, find_callers
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.handover import HandedConnections
from plumage_router.http.listener import Listener
from plumage_router.http.listening_sockets import ListeningSockets
from plumage_router.http.tls import TlsAcceptor
from plumage_router.http.tls_connection import TlsConnection
from plumage_router.pool_router import TICK, PoolRouter
from plumage_router.process.background import Background
from plumage_router.process.config_watch import ConfigWatch
from plumage_router.process.memory import freeze_startup_objects, keep_freed_blocks
from plumage_router.process.server_certificate import ServerCertificate
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.request.model import load_model

if TYPE_CHECKING:
    from plumage_router.extproc.port import EndpointPickerPort

__all__ = [
    "ROTATION",
    "RouterServer",
    "Service",
    "client_sockets",
    "drain",
    "name_of_router",
    "raise_file_limit",
    "run",
    "serve",
    "tls_acceptor",
]

log = logging.getLogger(__name__)

TURN_AWAY: Final = 1.0  # seconds before the end of a drain at which waiting requests are turned away
ROTATION: Final = 2.0  # seconds between checks of key files and the configuration


class RouterServer:
    """The router of one pool in one event loop. `await start()`, then `await stop()`.

    file: where `config` was read; it is read again when it changes.
    name: of this router among its peers; takes precedence over `config`.
    """

    def __init__(self, config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
        self.config = config
        self._loop = loop = asyncio.get_running_loop()
        name = name or name_of_router(config.router_id)
        self._tracing = LiveTracing(name)
        self.pool = PoolRouter(
            config,
            load_model(config.model),
            name=name,
            auth=Auth(config.auth, find_callers(config.auth, config.api_server)),
            tracing=self._tracing,
            application=make_app,
            loop=loop,
        )
        self.pool.pause_accepting = lambda: loop.call_soon(self._sockets.pause)
        self.pool.config_ignored = len(config.ignored)
        self._watch = ConfigWatch(file, config, self.reconfigure) if file is not None else None
        self.pool.tls = tls_acceptor(config.listen, self.pool, loop)
        self._sockets = client_sockets(config.listen, self.pool, loop)
        self.metrics_port = MetricsPort(config.listen, lambda accept: metrics_page(self.pool, accept), loop)
        self.endpoint_picker = _endpoint_picker(config, self.pool, loop)
        self.pool.picker_tls = None if self.endpoint_picker is None else self.endpoint_picker.tls
        self._background = Background(self.pool.metrics)

    @property
    def addresses(self) -> list[str]:
        """The addresses: `HOST:PORT` or a path."""
        return self._sockets.addresses

    async def start(self) -> None:
        self._raise_file_limit()
        self.pool.prepare()
        await self._tracing.follow(self.config.tracing)
        await self._sockets.start()
        await self.metrics_port.start()
        if self.endpoint_picker is not None:
            await self.endpoint_picker.start()
            log.info("pool %s: picks endpoints on %s", self.config.pool, ", ".join(self.endpoint_picker.addresses))
        self.pool.start()
        self._background.start(self._tick, self._rotate)
        log.info("pool %s: listening on %s", self.config.pool, ", ".join(self.addresses))

    def reconfigure(self, config: RouterConfig) -> None:
        """Applies the settings that may change at runtime. Raises ConfigurationError when the policy is invalid."""
        self.pool.reconfigure(config)
        self.config = config
        self._raise_file_limit()

    def _raise_file_limit(self) -> None:
        proxies = 0 if self.endpoint_picker is None else self.endpoint_picker.max_connections
        raise_file_limit(self.config.limits, acceptors=len(self.pool.tls_acceptors), more=proxies)

    async def leave(self) -> None:
        """Still serves requests, but is not ready and keeps no connection alive. Senders need time to notice."""
        if self.endpoint_picker is not None:
            self.endpoint_picker.leave()
        if self.config.timeouts.leave:
            self.pool.leaving = True
            await asyncio.sleep(self.config.timeouts.leave)

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stops accepting, waits for requests up to `drain_seconds`, and closes everything."""
        seconds = self.config.timeouts.drain if drain_seconds is None else drain_seconds
        ends = self._loop.time() + seconds
        if self.endpoint_picker is not None:
            await self.endpoint_picker.stop_accepting(seconds)
        self.pool.serving = False
        self._sockets.stop()
        self.metrics_port.stop()
        await drain(self.pool, seconds, self.pool.turn_away_waiting)
        if self.endpoint_picker is not None:
            await self._drain_picker(self.endpoint_picker, ends)
        await self._background.stop()
        await self.pool.close()
        await self._tracing.close()
        await asyncio.sleep(0)  # lets the aborted transports call their protocols

    async def _drain_picker(self, picker: EndpointPickerPort, ends: float) -> None:
        """Requests that a proxy asked about end until then, or their streams are cut."""
        while not picker.idle and self._loop.time() < ends:
            if self._loop.time() > ends - TURN_AWAY:
                self.pool.turn_away_waiting()
            await asyncio.sleep(0.02)
        picker.cut()

    async def _tick(self) -> None:
        pool = self.pool
        while True:
            await asyncio.sleep(TICK)
            pool.sweep()
            await self.metrics_port.check()
            if self.endpoint_picker is not None:
                await self.endpoint_picker.sweep()
            if not self._sockets.accepting and pool.serving and pool.can_accept:
                await self._sockets.accept()

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATION)
            self.pool.refresh_keys()
            if self._watch is not None:
                self._watch.check()
                await self._tracing.follow(self.config.tracing)
                self.pool.config_error = self._watch.error
                self.pool.config_ignored = len(self._watch.ignored)
            self.pool.engines.refresh()


def _endpoint_picker(
    config: RouterConfig, pool: PoolRouter, loop: asyncio.AbstractEventLoop
) -> EndpointPickerPort | None:
    """None where the settings name no port for it. It is imported only then: few pools have one."""
    if config.endpoint_picker is None:
        return None
    from plumage_router.extproc.port import EndpointPickerPort

    return EndpointPickerPort(config.endpoint_picker, config.listen, pool, loop)


def name_of_router(given: str | None) -> str:
    """The router's name, which must differ from those of its peers."""
    return given or f"{socket.gethostname()}-{os.getpid()}"


async def drain(listener: Listener, seconds: float, turn_away: Callable[[], None]) -> None:
    """Waits until the last connection is closed, at most `seconds`, and cuts off the others.

    turn_away: ends the requests that wait for a replica; called shortly before the end.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while listener.connections and loop.time() < deadline:
        for connection in tuple(listener.connections):
            connection.close_when_idle()
        if loop.time() > deadline - TURN_AWAY:
            turn_away()
        await asyncio.sleep(0.02)
    if listener.connections:
        log.warning("drain timeout: cutting off %d connections", len(listener.connections))
    for connection in tuple(listener.connections):
        connection.transport.abort()


def client_sockets(listen: ListenConfig, listener: Listener, loop: asyncio.AbstractEventLoop) -> ListeningSockets:
    """Where a listener's clients come from: its own sockets, and a supervisor."""
    descriptor = listen.handover_fd
    handed = None
    if descriptor is not None:
        handed = HandedConnections(descriptor, listener, loop, listener.pause_accepting)
    return ListeningSockets(listen, lambda: DownstreamConnection(listener, loop), loop, listener.tls, handed)


def tls_acceptor(listen: ListenConfig, listener: Listener, loop: asyncio.AbstractEventLoop) -> TlsAcceptor | None:
    """Accepts a listener's connections over TLS; None without a certificate in its settings."""
    if listen.tls is None:
        return None
    connect = partial(TlsConnection, listener, loop)
    return TlsAcceptor(listener, ServerCertificate(listen.tls), connect, listener.pause_accepting, loop)


def raise_file_limit(limits: LimitsConfig, *, acceptors: int = 0, more: int = 0) -> None:
    """Raises the limit of open files for that many connections, as far as the system allows.

    acceptors: ports with TLS. more: connections to the endpoint picker, or to engines for copies of requests.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    handshakes = limits.max_handshakes * acceptors
    wanted = files_of_router(limits.max_connections + handshakes + more, limits.max_in_flight)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < wanted:
        log.warning(
            "at most %s open files are allowed, %s may be needed: raise the hard limit (ulimit -Hn), or lower "
            "maxConnections and maxInFlight",
            f"{soft:,}", f"{wanted:,}",
        )  # fmt: skip


class Service(Protocol):
    """What a router process runs: the server of one pool, or of several."""

    async def start(self) -> None: ...

    async def leave(self) -> None: ...

    async def stop(self, drain_seconds: float | None = None) -> None: ...


async def serve(config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
    """Runs the router of one pool until SIGTERM or SIGINT."""
    await run(RouterServer(config, file, name=name))


async def run(service: Service) -> None:
    """Runs a service until SIGTERM or SIGINT, and stops it in order."""
    keep_freed_blocks()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await service.start()
    freeze_startup_objects()
    await stopping.wait()
    await service.leave()
    await service.stop()
