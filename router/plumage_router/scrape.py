"""The metrics on a port of their own: for a scraper within the cluster, which has no key.

Where API keys are in use the clients' port tells the metrics to the admin alone, since they show what other tenants do.
This port is in no Service, and a NetworkPolicy opens it to the namespaces that are named for monitoring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from plumage_router.app import add_metrics, bare_app
from plumage_router.auth import Auth
from plumage_router.bridge import BridgedRequest
from plumage_router.client import ClientConnection
from plumage_router.config import AuthConfig, LimitsConfig, ListenConfig, TimeoutsConfig
from plumage_router.entrance import Entrance
from plumage_router.listening import Listening
from plumage_router.request import Handler, Request

__all__ = ["Scrape"]

_LIMITS: Final = LimitsConfig(max_connections=64, max_body_bytes=1024, max_buffered_bytes=65_536, max_pipelined=2)


class Scrape(Entrance):
    """`begin()`, `look()` with each tick, then `end()`. page: the metrics, of an Accept header. Without a port in
    `config` nothing listens."""

    def __init__(
        self, config: ListenConfig, page: Callable[[str], tuple[Any, str]], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            _LIMITS, TimeoutsConfig(), Auth(AuthConfig()), access_log=False, loop=loop,
            pause_accepting=lambda: loop.call_soon(self._pause),
        )  # fmt: skip
        self._application = bare_app(self)
        add_metrics(self._application, page)
        port = config.metrics_port
        own = ListenConfig(host=config.host, port=port, backlog=64)
        self._listening = None if port is None else Listening(own, lambda: ClientConnection(self, loop), loop)

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `HOST:PORT`; nowhere without a port."""
        return [] if self._listening is None else self._listening.addresses

    def handler(self, request: Request, connection: ClientConnection) -> Handler:
        return BridgedRequest(self._application, request, connection, self._loop, self.log_access)

    async def begin(self) -> None:
        """Binds, and accepts. ConfigurationError where the port can't be had."""
        if self._listening is not None:
            await self._listening.begin()

    async def look(self) -> None:
        """One tick."""
        self.sweep()
        if self._listening is not None and not self._listening.accepting and self.serving and self.has_room:
            await self._listening.accept()

    def end(self) -> None:
        """Nobody is answered any more."""
        self.serving = False
        if self._listening is not None:
            self._listening.end()
        for connection in tuple(self.connections):
            connection.transport.abort()

    def _pause(self) -> None:
        if self._listening is not None:
            self._listening.pause()
