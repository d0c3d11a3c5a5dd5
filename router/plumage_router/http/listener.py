"""What one port shares: its connections, authentication, admission, request ids, error headers, the access log.

`PoolRouter` is the listener of one pool. `PoolDispatcher` (`multi_pool`) is a listener in front of several pools.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.clock import monotonic, wall
from plumage_router.http.auth import Auth
from plumage_router.http.body_memory import BodyMemory, BodyReservation
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.errors import RequestError, overloaded, unauthorized
from plumage_router.http.json_lines import JsonLines
from plumage_router.http.paths import ENGINE_PATHS, PROBES, path_class, response_call
from plumage_router.http.request import Handler, Request
from plumage_router.http.time_slicing import TimeSlicer
from plumage_router.http.tls import TlsAcceptor
from plumage_router.http.wire import wall_date
from plumage_router.metrics import Metrics
from plumage_router.process.memory import MemoryTrimmer

__all__ = ["NEEDS_KEY", "Listener"]

NEEDS_KEY: Final = "A valid API key is needed: Authorization: Bearer KEY."
_ANSWERED_OVER_LIMIT: Final = 128  # connections over the limit that get an error; then accepting is paused
_ID_BYTES: Final = 12
_ID_SAFE: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/=+"


class Listener(ABC):
    """The `DownstreamHost` of a port's connections; a subclass makes the handlers of its requests.

    `completion_handler`: makes the handler of a completion; None for a port that serves no completions.
    `access_log`: None when it is switched off.
    `serving`: False once the router shuts down. `leaving`: True before that, while it serves but is not ready.
    `config_error`: why a changed configuration file is not in force; None while it is.
    `config_ignored`: number of fields from a newer operator that are ignored.
    `tls`: accepts the port's connections; None for plain HTTP. `picker_tls`: the same of the endpoint picker.
    `pause_accepting`: called when too many connections are open. Set it before the first one.
    """

    completion_handler: Callable[[Request, DownstreamConnection], Handler] | None = None

    def __init__(
        self,
        limits: LimitsConfig,
        timeouts: TimeoutsConfig,
        auth: Auth,
        *,
        access_log: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.access_log = JsonLines() if access_log else None
        self.limits = limits
        self.timeouts = timeouts
        self.auth = auth
        self.metrics = Metrics()
        self.pause_accepting: Callable[[], object] = _accept_all
        self.connections: set[DownstreamConnection] = set()
        self.serving = True
        self.leaving = False
        self.config_error: str | None = None
        self.config_ignored = 0
        self.tls: TlsAcceptor | None = None
        self.picker_tls: TlsAcceptor | None = None
        self.started = wall()
        self.tick = monotonic()
        self.date = wall_date(wall())
        self.body_memory = BodyMemory(limits.max_buffered_bytes, keyed=auth.enabled)
        self.time_slicer = TimeSlicer(loop)
        self._loop = loop
        self._trimmer = MemoryTrimmer()

    @property
    def keeps_alive(self) -> bool:
        """Whether a client may send its next request here."""
        return self.serving and not self.leaving

    @property
    def port_keys_error(self) -> str | None:
        """Why a file with keys or the certificate is not in force; None while all are."""
        certificates = [acceptor.certificate.error for acceptor in self.tls_acceptors]
        return "; ".join(dict.fromkeys(error for error in (self.auth.error, *certificates) if error)) or None

    @property
    def tls_acceptors(self) -> list[TlsAcceptor]:
        """Those of the ports with TLS."""
        return [acceptor for acceptor in (self.tls, self.picker_tls) if acceptor is not None]

    def refresh_keys(self) -> None:
        """Reads changed files of clients' keys and of the certificate again. Call it every few seconds."""
        self.auth.refresh()
        for acceptor in self.tls_acceptors:
            acceptor.certificate.refresh()

    # -- for connections ----------------------------------------------------------------------------------------------

    def opened(self, connection: DownstreamConnection) -> RequestError | None:
        self.connections.add(connection)
        over = len(self.connections) - self.limits.max_connections
        if over <= 0:
            return None
        if over == _ANSWERED_OVER_LIMIT:
            self.pause_accepting()
        return overloaded("Too many connections are open.")

    @property
    def can_accept(self) -> bool:
        """Whether connections may be accepted again after a pause."""
        if self.tls is not None and not self.tls.can_accept:
            return False
        return len(self.connections) < self.limits.max_connections + _ANSWERED_OVER_LIMIT // 2

    def closed(self, connection: DownstreamConnection) -> None:
        self.connections.discard(connection)

    def handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        make = self.completion_handler
        if make is None or not request.is_completion:
            return self.control_handler(request, connection)
        return make(request, connection)

    @abstractmethod
    def control_handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        """Makes the handler of a request that is not a completion."""

    def admit(self, request: Request) -> RequestError | None:
        reads_body = request.method == b"POST" and request.target.partition(b"?")[0] in ENGINE_PATHS
        request.id = self.request_id(request)
        completion = reads_body or response_call(request.method, request.target) is not None
        request.is_completion = completion
        if not self.auth.enabled:
            request.tenant = self.auth.nobody
        elif completion or request.has_body:
            request.tenant = tenant = self.auth.tenant(request.headers)
            if tenant is None and (completion or not self.auth.is_admin(request.headers)):
                self.metrics.requests += completion
                return unauthorized(NEEDS_KEY)
            if tenant is not None:
                request.sender = tenant.name
        if reads_body:
            request.reservation = BodyReservation(request.sender)
        return None

    def refused(self, error: RequestError) -> bytes:
        self.count_error(error)
        request_id = secrets.token_hex(_ID_BYTES)
        self.log_access(None, error.status, requestId=request_id, error=error.code or "other")
        return error.headers(request_id)

    # -- for requests -------------------------------------------------------------------------------------------------

    def request_id(self, request: Request) -> str:
        """Returns the client's own id when it is short and plain, else a random one."""
        given = request.headers.get(b"x-request-id")
        if given and len(given) <= 128 and not given.translate(None, _ID_SAFE):
            return given.decode("ascii")
        return secrets.token_hex(_ID_BYTES)

    def authenticate(self, request: Request) -> None:
        """Sets the request's tenant. Raises RequestError without a valid key."""
        if request.tenant is None:
            request.tenant = self.auth.tenant(request.headers)
            if request.tenant is None:
                raise unauthorized(NEEDS_KEY)

    def wants_explanation(self, request: Request) -> bool:
        """Whether the client asked for X-Plumage-Explain. Raises RequestError without the admin key."""
        if b"x-plumage-explain" not in request.headers:
            return False
        if not self.auth.is_admin(request.headers):
            raise RequestError(403, f"X-Plumage-Explain: {self.auth.admin_refusal}", code="admin_key")
        return request.headers[b"x-plumage-explain"].strip() not in (b"0", b"")

    def log_access(self, request: Request | None, status: int, **more: Any) -> None:
        """Writes a line to the access log, if there is one. Successful probes and scrapes are left out.

        request: None when its head was not read completely.
        """
        if self.access_log is None:
            return
        path = path_class(request.target.partition(b"?")[0].decode("latin-1")) if request is not None else None
        if status < 400 and path in PROBES:
            return
        method = request.method.decode("latin-1")[:16] if request is not None else None
        at = datetime.fromtimestamp(wall(), UTC).isoformat(timespec="milliseconds")
        self.access_log.add({"time": at, "method": method, "path": path, "status": status, **more})

    def close_access_log(self) -> None:
        """Writes the last lines."""
        if self.access_log is not None:
            self.access_log.close()

    def count_error(self, error: RequestError) -> None:
        self.metrics.errors[error.code or "other"] += 1
        self.metrics.responses[error.status] += 1

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Call with each tick: moves the coarse clock and expires connections."""
        now = self.tick = monotonic()
        self.date = wall_date(wall())
        self.metrics.flush()
        self._trimmer.check(self.body_memory.take_peak(), self.body_memory.used)
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire()


def _accept_all() -> None:
    """Does nothing: a listener behind another one has no connections."""
