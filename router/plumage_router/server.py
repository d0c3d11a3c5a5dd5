"""A router's life: build the parts, listen, keep the background tasks running, drain, leave nothing behind.

Accepting is paused when connections pass their bound by more than a few (the system's queue then holds newcomers back)
by closing the event loop's handle on the listening socket while the socket itself stays open. SIGTERM and SIGINT stop
accepting, let what is under way finish up to the drain timeout, and then cut it off.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from plumage.directory.mirror import Mirror
from plumage.directory.tasks import Mistakes
from plumage.errors import ConfigurationError
from plumage.open_files import files_of_router
from plumage.options import refuse_given
from plumage.routing import make_policy
from plumage.routing.interface import RoutingPolicy
from plumage_router.app import make_app
from plumage_router.auth import Auth, read_secret
from plumage_router.breaker import Breaker
from plumage_router.client import ClientConnection
from plumage_router.collector import settle
from plumage_router.config import PolicyConfig, RouterConfig
from plumage_router.decide import Decider
from plumage_router.directory import DirectoryLink
from plumage_router.gateway import TICK, Gateway
from plumage_router.hottest import Hottest
from plumage_router.incluster import find_callers, find_members
from plumage_router.listening import address, bind, unbind
from plumage_router.live import ConfigWatch
from plumage_router.model import load_model
from plumage_router.probe import Prober
from plumage_router.replicas import Fleet
from plumage_router.upstream import Pool

__all__ = ["Router", "serve"]

log = logging.getLogger(__name__)

RESTART = 1.0  # seconds until a background task that failed is begun again
LAST = 1.0  # seconds before the end of a drain in which requests that are held are told to come back
ROTATION = 2.0  # seconds between looks at key files


class Router:
    """One router in one event loop. `await start()`, then `await stop()`. file: where `config` was read, to be read
    again when it changes. name: among its peers, before what `config` says."""

    def __init__(self, config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        limits, timeouts = config.limits, config.timeouts
        self.fleet = Fleet(
            lambda host, port: Pool(
                host,
                port,
                self._loop,
                max_idle=self.config.limits.max_idle_per_replica,
                connect_timeout=self.config.timeouts.connect,
            ),
            lambda: Breaker(self.config.breaker),
        )
        policy = _make_policy(config)
        mirror = Mirror(limits.max_directory_chunks)
        model = load_model(config.model)
        decider = Decider(mirror, policy, self.fleet.load_of, pending=timeouts.pending_owner)
        name = name or config.router_id or f"{socket.gethostname()}-{os.getpid()}"
        hottest = Hottest()
        self.membership = find_members(config, self.fleet, random.Random())
        self.fleet.listen(self._replica_moved)
        self.directory = DirectoryLink(
            config.directory,
            pool=config.pool,
            router=name,
            fleet=self.fleet,
            decider=decider,
            hottest=hottest,
            engine=model.engine,
        )
        self.gateway = Gateway(
            config,
            name=name,
            auth=Auth(config.auth, find_callers(config)),
            fleet=self.fleet,
            reader=model.reader,
            decider=decider,
            policy=policy,
            hottest=hottest,
            membership=self.membership,
            directory=self.directory,
            application=make_app,
            pause_accepting=lambda: self._loop.call_soon(self._stop_accepting),
            loop=self._loop,
        )
        self._prober = Prober(self.fleet, interval=timeouts.probe_interval, timeout=timeouts.probe)
        self._watch = ConfigWatch(file, config, self.use) if file is not None else None
        self._listening: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `HOST:PORT` or a path."""
        return [address(sock) for sock in self._listening]

    async def start(self) -> None:
        self._raise_file_limit()
        self._read_engine_key()
        self.directory.start()
        self.membership.poll()
        self._listening = bind(self.config.listen)
        await self._accept()
        works = (
            self.membership.run, self.directory.run, self._prober.run, self._tick, self._rotate,
        )  # fmt: skip
        for work in works:
            self._tasks.append(self._loop.create_task(self._forever(work)))
        log.info("pool %s: listening on %s", self.config.pool, ", ".join(self.addresses))

    def use(self, config: RouterConfig) -> None:
        """Another configuration, for what can be changed live. ConfigurationError where its policy can't work."""
        policy = self.gateway.policy if config.policy == self.config.policy else _make_policy(config)
        self.config = config
        self.gateway.use(config, policy)
        self.gateway.decider.policy = policy
        self.directory.use(policy, config.timeouts.pending_owner)
        self._prober.interval, self._prober.timeout = config.timeouts.probe_interval, config.timeouts.probe
        for replica in self.fleet:
            limits, timeouts = config.limits, config.timeouts
            replica.pool.use(max_idle=limits.max_idle_per_replica, connect_timeout=timeouts.connect)
            replica.breaker.use(config.breaker)
        self._raise_file_limit()

    async def leave(self) -> None:
        """Still serves everybody, but says that it is not ready and keeps no connection: those who send here need a
        while to hear of it."""
        if self.config.timeouts.leave:
            self.gateway.leaving = True
            await asyncio.sleep(self.config.timeouts.leave)

    async def stop(self, drain: float | None = None) -> None:
        """Stops accepting, waits for what is under way up to `drain` seconds, closes everything."""
        gateway = self.gateway
        gateway.serving = False
        self._stop_accepting()
        while self._listening:
            unbind(self._listening.pop())
        deadline = self._loop.time() + (self.config.timeouts.drain if drain is None else drain)
        while gateway.connections and self._loop.time() < deadline:
            for connection in tuple(gateway.connections):
                connection.close_when_idle()
            if self._loop.time() > deadline - LAST:
                gateway.hold.close()
            await asyncio.sleep(0.02)
        if gateway.connections:
            log.warning("drain timeout: cutting off %d connections", len(gateway.connections))
        for connection in tuple(gateway.connections):
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.directory.close()
        self.fleet.close()
        await asyncio.sleep(0)  # lets the aborted transports tell their protocols

    def _replica_moved(self, replica: Any, came: bool) -> None:
        if not came:
            self.gateway.policy.forget(replica.slot)

    async def _accept(self) -> None:
        def connection() -> ClientConnection:
            return ClientConnection(self.gateway, self._loop)

        for sock in self._listening:
            handle = sock.dup()
            create = self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
            kept: dict[str, Any] = {}
            if "cleanup_socket" in inspect.signature(create).parameters:  # from 3.13 on: a pause would remove the path
                kept["cleanup_socket"] = False
            self._servers.append(await create(connection, sock=handle, backlog=self.config.listen.backlog, **kept))

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def _tick(self) -> None:
        gateway = self.gateway
        while True:
            await asyncio.sleep(TICK)
            gateway.sweep()
            if not self._servers and gateway.serving and gateway.has_room:
                await self._accept()

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATION)
            self.gateway.auth.refresh()
            if self._watch is not None:
                self._watch.look()
                self.gateway.config_error = self._watch.error
            try:
                self._read_engine_key()
            except ConfigurationError as error:
                log.warning("%s; keeping the key known before", error)

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a background task; one that fails is counted, told of once a kind and begun again, for requests must not
        depend on it."""
        mistakes = Mistakes(f"the router's background task {work.__qualname__}", foreseen=())
        while True:
            try:
                await work()
            except Exception as error:
                self.gateway.metrics.background_failures += 1
                mistakes.tell(error)
            await asyncio.sleep(RESTART)

    def _read_engine_key(self) -> None:
        path = self.config.engine_api_key_file
        key = read_secret(path, "the engines' API key") if path else None
        if key != self.gateway.engine_key:
            self.gateway.use_engine_key(key)

    def _raise_file_limit(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = files_of_router(self.config.limits.max_connections, self.config.limits.max_in_flight)
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            log.warning(
                "at most %s open files are allowed, %s may be needed: raise the hard limit (ulimit -Hn), or lower "
                "maxConnections and maxInFlight",
                f"{soft:,}", f"{wanted:,}",
            )  # fmt: skip


def _make_policy(config: RouterConfig) -> RoutingPolicy:
    return make_policy(config.policy.name, rng=random.Random(config.seed), **_options(config.policy))


def _options(policy: PolicyConfig) -> dict[str, Any]:
    options = {**policy.options, **(policy.lbgr if policy.name.startswith("Lbgr") else {})}
    refuse_given(f"routing policy {policy.name}", options, ("name", "rng"))
    return options


async def serve(config: RouterConfig, file: Path | None = None, *, name: str | None = None) -> None:
    """Runs a router until SIGTERM or SIGINT."""
    router = Router(config, file, name=name)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await router.start()
    settle()
    await stopping.wait()
    await router.leave()
    await router.stop()
