"""The port of the endpoint picker: gRPC without TLS, for proxies.

It serves Envoy's external processing and gRPC's health check. The bounds of a pool (bodies, memory, requests in flight)
are those of its router; a port alone bounds connections and calls on each.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from plumage.settings.router_config import EndpointPickerConfig, ListenConfig
from plumage_router.extproc.grpc import Call, CallHandler, Methods
from plumage_router.extproc.http2 import Http2Connection
from plumage_router.extproc.picked_request import PickedRequest
from plumage_router.http.listening_sockets import ListeningSockets
from plumage_router.pool_router import PoolRouter

__all__ = ["EndpointPickerPort"]

_PROCESS: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_CHECK: Final = b"/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse.status
_MAX_CONNECTIONS: Final = 1024  # a proxy has one for each of its threads


class EndpointPickerPort:
    """Call `start`, then `stop_accepting`, and `cut` once it is `idle` or time is over."""

    def __init__(
        self, config: EndpointPickerConfig, host: str, pool: PoolRouter, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pool = pool
        self._methods = Methods(
            {_PROCESS: partial(PickedRequest, pool, config.fallbacks), _CHECK: self._check},
            max_connections=_MAX_CONNECTIONS,
            max_streams=pool.limits.max_in_flight,
        )
        listen = ListenConfig(host=host, port=config.port)
        self._sockets = ListeningSockets(listen, lambda: Http2Connection(self._methods, loop), loop)

    @property
    def addresses(self) -> list[str]:
        """The address `HOST:PORT`."""
        return self._sockets.addresses

    @property
    def idle(self) -> bool:
        """No proxy waits for anything."""
        return not any(connection.streams for connection in self._methods.connections)

    async def start(self) -> None:
        """Binds the port. Raises ConfigurationError if it cannot be bound."""
        await self._sockets.start()

    def stop_accepting(self) -> None:
        """Proxies connect elsewhere, and finish what they began."""
        self._sockets.stop()
        for connection in tuple(self._methods.connections):
            connection.go_away()

    def cut(self) -> None:
        """Ends all connections."""
        for connection in tuple(self._methods.connections):
            connection.transport.abort()

    def _check(self, call: Call) -> CallHandler:
        return _HealthCheck(call, self._pool)


class _HealthCheck:
    """grpc.health.v1.Health/Check. The request names a service, and all have the same state."""

    def __init__(self, call: Call, pool: PoolRouter) -> None:
        self._call = call
        self._pool = pool

    def message(self, data: bytes) -> None:
        return

    def half_closed(self) -> None:
        self._call.send(_SERVING if self._pool.ready else _NOT_SERVING)
        self._call.end()

    def aborted(self) -> None:
        return
