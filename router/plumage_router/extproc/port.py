"""The port of the endpoint picker: gRPC for proxies, over TLS where the router has a certificate.

It serves Envoy's external processing and gRPC's health check. The bounds of a pool (bodies, memory, requests in flight)
and its timeouts are those of its router.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from plumage.settings.router_config import EndpointPickerConfig, ListenConfig
from plumage_router.clock import monotonic
from plumage_router.extproc.grpc import Call, CallHandler, GrpcStatus, Methods
from plumage_router.extproc.http2 import Http2Connection
from plumage_router.extproc.picked_request import PickedRequest
from plumage_router.http.listening_sockets import ListeningSockets
from plumage_router.http.tls import TlsAcceptor
from plumage_router.pool_router import PoolRouter
from plumage_router.process.server_certificate import HTTP2, ServerCertificate

__all__ = ["EndpointPickerPort"]

_PROCESS: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_CHECK: Final = b"/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse.status
_NOTICE: Final = 1.0  # seconds: the longest wait until proxies know that they should go elsewhere
_LOOK: Final = 0.005  # seconds between two looks whether they know it


class EndpointPickerPort:
    """Call `start`, and `sweep` with each tick; then `leave`, `stop_accepting`, and `cut` once it is `idle` or time is
    over. `tls`: accepts the connections; None for plain HTTP/2."""

    max_connections: Final = 1024
    """A proxy has one for each of its threads."""

    def __init__(
        self, config: EndpointPickerConfig, listen: ListenConfig, pool: PoolRouter, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pool = pool
        self._methods = Methods(
            {_PROCESS: partial(PickedRequest, pool, config.fallbacks), _CHECK: self._check},
            pool,
            max_connections=self.max_connections,
        )
        connect = partial(Http2Connection, self._methods, loop)
        self.tls: TlsAcceptor | None = None
        if listen.tls is not None:
            certificate = ServerCertificate(listen.tls, HTTP2)
            self.tls = TlsAcceptor(pool, certificate, connect, lambda: loop.call_soon(self._sockets.pause), loop)
        self._sockets = ListeningSockets(ListenConfig(host=listen.host, port=config.port), connect, loop, self.tls)

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

    async def sweep(self) -> None:
        """Ends what took too long, and accepts connections again after a pause."""
        self._methods.sweep(monotonic())
        if not self._sockets.accepting and self._sockets.addresses and (self.tls is None or self.tls.can_accept):
            await self._sockets.accept()

    def leave(self) -> None:
        """Asks the proxies to send further requests elsewhere. Those that they send meanwhile are served."""
        for connection in tuple(self._methods.connections):
            connection.leave()

    async def stop_accepting(self, seconds: float) -> None:
        """Accepts no connection, and after a notice no further request. Proxies finish what they began.

        seconds: the longest wait until they have read the notice, if it is below a second.
        """
        self._sockets.stop()
        self.leave()
        ends = monotonic() + min(seconds, _NOTICE)
        while not self._all_noticed() and monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        for connection in tuple(self._methods.connections):
            connection.go_away()

    def _all_noticed(self) -> bool:
        return all(connection.noticed for connection in self._methods.connections)

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
        call.expire_at(pool.tick + pool.timeouts.header)

    def message(self, data: bytes) -> None:
        return

    def half_closed(self) -> None:
        self._call.send(_SERVING if self._pool.ready else _NOT_SERVING)
        self._call.end()

    def crowded(self) -> None:
        self._call.end(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages are in memory")

    def expired(self) -> None:
        self._call.end(GrpcStatus.DEADLINE_EXCEEDED, "the request did not arrive in time")

    def aborted(self) -> None:
        return
