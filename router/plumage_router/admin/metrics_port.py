"""Serves the metrics on a separate port, for a scraper in the cluster, which has no API key.

With API keys, the clients' port shows the metrics only to the admin, because they show the traffic of all tenants. This
port is in no Service. A NetworkPolicy opens it to the monitoring namespaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from plumage.settings.router_config import AuthConfig, LimitsConfig, ListenConfig, TimeoutsConfig
from plumage_router.admin.app import add_metrics, bare_app
from plumage_router.http.asgi import AsgiRequest
from plumage_router.http.auth import Auth
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.listener import Listener
from plumage_router.http.listening_sockets import ListeningSockets
from plumage_router.http.request import Handler, Request

__all__ = ["MetricsPort"]

_LIMITS: Final = LimitsConfig(max_connections=64, max_body_bytes=1024, max_buffered_bytes=65_536, max_pipelined=2)


class MetricsPort(Listener):
    """Call `start`, `check` with each tick, then `stop`. Without a port in `config` nothing listens.

    page: makes content and content type for an Accept header.
    """

    def __init__(
        self, config: ListenConfig, page: Callable[[str], tuple[Any, str]], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(_LIMITS, TimeoutsConfig(), Auth(AuthConfig()), access_log=False, loop=loop)
        self.pause_accepting = lambda: loop.call_soon(self._pause)
        self._application = bare_app(self)
        add_metrics(self._application, page)
        port = config.metrics_port
        own = ListenConfig(host=config.host, port=port, backlog=64)
        self._sockets = None if port is None else ListeningSockets(own, lambda: DownstreamConnection(self, loop), loop)

    @property
    def addresses(self) -> list[str]:
        """The address `HOST:PORT`; none without a port."""
        return [] if self._sockets is None else self._sockets.addresses

    def control_handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        return AsgiRequest(self._application, request, connection, self._loop, self.log_access)

    async def start(self) -> None:
        """Binds the port. Raises ConfigurationError if it cannot be bound."""
        if self._sockets is not None:
            await self._sockets.start()

    async def check(self) -> None:
        """Call with each tick."""
        self.sweep()
        if self._sockets is not None and not self._sockets.accepting and self.serving and self.can_accept:
            await self._sockets.accept()

    def stop(self) -> None:
        """Closes the port and its connections."""
        self.serving = False
        if self._sockets is not None:
            self._sockets.stop()
        for connection in tuple(self.connections):
            connection.transport.abort()

    def _pause(self) -> None:
        if self._sockets is not None:
            self._sockets.pause()
