"""What a port and those behind it share, whatever they serve: connections, who is asking, ids, how an error is told.

A `Gateway` is the entrance of one pool; a front (`plumage_router.front`) is one before the gateways of several pools.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from plumage_router.access_log import AccessLog
from plumage_router.allocator import Trimmer
from plumage_router.auth import Auth, Tenant
from plumage_router.client import ClientConnection
from plumage_router.clock import monotonic, wall
from plumage_router.config import LimitsConfig, TimeoutsConfig
from plumage_router.errors import RequestError, bad_request, overloaded, unauthorized
from plumage_router.metrics import Metrics
from plumage_router.paths import PROBES, path_class
from plumage_router.pieces import Pieces
from plumage_router.prompt import CHAT_PATH, COMPLETION_PATH
from plumage_router.request import Handler, Request
from plumage_router.room import Held, Room
from plumage_router.wire import JSON, wall_date

__all__ = ["NEEDS_KEY", "Entrance", "is_completion"]

NEEDS_KEY: Final = "A valid API key is needed: Authorization: Bearer KEY."
REFUSED_AT_ONCE: Final = 128  # connections over the bound that are told so, before accepting is paused
ID_BYTES: Final = 12
_ID_SAFE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/=+"


def is_completion(request: Request) -> bool:
    """Does an engine answer it?"""
    return request.method == b"POST" and request.target.partition(b"?")[0] in (CHAT_PATH, COMPLETION_PATH)


class Entrance(ABC):
    """The `Host` of every client connection, less `handler`. `access`: the log of requests, None without one.
    `pause_accepting`: called when too many connections are open. `serving` is False once the router shuts down;
    `leaving` before that, while it still serves but wants nobody new. `config_error`: what of a changed configuration
    file is not in force; `config_ignored`: how many of its fields are a newer operator's, and passed over."""

    def __init__(
        self,
        limits: LimitsConfig,
        timeouts: TimeoutsConfig,
        auth: Auth,
        *,
        access_log: bool,
        pause_accepting: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.access = AccessLog() if access_log else None
        self.limits = limits
        self.timeouts = timeouts
        self.auth = auth
        self.metrics = Metrics()
        self.pause_accepting = pause_accepting
        self.connections: set[ClientConnection] = set()
        self.serving = True
        self.leaving = False
        self.config_error: str | None = None
        self.config_ignored = 0
        self.started = wall()
        self.tick = monotonic()
        self.date = wall_date(wall())
        self.room = Room(limits.max_buffered_bytes, shared=auth.enabled)
        self._loop = loop
        self._trimmer = Trimmer()
        self.pieces = Pieces(loop)

    @property
    def keeps_alive(self) -> bool:
        """May a client send its next request here too?"""
        return self.serving and not self.leaving

    # -- for connections ----------------------------------------------------------------------------------------------

    def opened(self, connection: ClientConnection) -> RequestError | None:
        self.connections.add(connection)
        over = len(self.connections) - self.limits.max_connections
        if over <= 0:
            return None
        if over == REFUSED_AT_ONCE:
            self.pause_accepting()
        return overloaded("Too many connections are open.")

    @property
    def has_room(self) -> bool:
        """May connections be accepted again after a pause?"""
        return len(self.connections) < self.limits.max_connections + REFUSED_AT_ONCE // 2

    def closed(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    @abstractmethod
    def handler(self, request: Request, connection: ClientConnection) -> Handler:
        """Who answers it."""

    def admit(self, request: Request) -> RequestError | None:
        completion = is_completion(request)
        if self.auth.enabled and (completion or request.has_body):
            request.tenant = tenant = self.auth.tenant(request.headers)
            if tenant is None and (completion or not self.auth.is_admin(request.headers)):
                self.metrics.requests += completion
                return unauthorized(NEEDS_KEY)
        if completion:
            request.held = Held(request.tenant.name if request.tenant is not None else "")
        return None

    def refused(self, error: RequestError) -> bytes:
        self.count_error(error)
        request_id = secrets.token_hex(ID_BYTES)
        self.log_access(None, error.status, requestId=request_id, error=error.code or "other")
        return self.error_headers(error, request_id)

    # -- for exchanges ------------------------------------------------------------------------------------------------

    def request_id(self, request: Request) -> str:
        """The client's own id where it is short and plain, else a random one: it tells nothing of other requests."""
        given = request.headers.get(b"x-request-id")
        if given and len(given) <= 128 and not given.translate(None, _ID_SAFE):
            return given.decode("ascii")
        return secrets.token_hex(ID_BYTES)

    def authenticate(self, request: Request) -> Tenant:
        """Who sent it: known since its headers were complete, where keys are used."""
        tenant = request.tenant or self.auth.tenant(request.headers)
        if tenant is None:
            raise unauthorized(NEEDS_KEY)
        return tenant

    def wants_explanation(self, request: Request) -> bool:
        if b"x-plumage-explain" not in request.headers:
            return False
        if not self.auth.is_admin(request.headers):
            raise RequestError(403, f"X-Plumage-Explain: {self.auth.admin_refusal}", code="admin_key")
        return request.headers[b"x-plumage-explain"].strip() not in (b"0", b"")

    def check_media_type(self, request: Request) -> None:
        headers = request.headers
        kind = headers.get(b"content-type")
        if kind is not None and kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
            raise RequestError(415, "The body must be application/json.", code="media_type")
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise RequestError(415, "Compressed bodies are not accepted.", code="content_encoding")
        if not request.body:
            raise bad_request("The body is empty.", code="invalid_json")

    def log_access(self, request: Request | None, status: int, **more: Any) -> None:
        """One line of the access log, where there is one. request: None where its head was not read whole. Probes and
        scrapes that went well are left out: they would bury the rest."""
        if self.access is None:
            return
        path = path_class(request.target.partition(b"?")[0].decode("latin-1")) if request is not None else None
        if status < 400 and path in PROBES:
            return
        method = request.method.decode("latin-1")[:16] if request is not None else None
        at = datetime.fromtimestamp(wall(), UTC).isoformat(timespec="milliseconds")
        self.access.add({"time": at, "method": method, "path": path, "status": status, **more})

    def end_access_log(self) -> None:
        """Writes the last lines."""
        if self.access is not None:
            self.access.close()

    def count_error(self, error: RequestError) -> None:
        self.metrics.errors[error.code or "other"] += 1
        self.metrics.responses[error.status] += 1

    def error_headers(self, error: RequestError, request_id: str) -> bytes:
        lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % request_id.encode()
        if error.status == 401:
            lines += b"www-authenticate: Bearer\r\n"
        if error.retry_after is not None:
            lines += b"retry-after: %d\r\n" % error.retry_after
        return lines

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """One tick: the clocks, and connections past their deadline."""
        now = self.tick = monotonic()
        self.date = wall_date(wall())
        self.metrics.settle()
        self._trimmer.look(self.room.held)
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire()
