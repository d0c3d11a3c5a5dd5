"""What all connections of a router share, and the slow tick that keeps time for them.

The gateway gives each request its handler: an exchange for completions, the control surface for all else. Once a tick
it moves the coarse clock, lets requests that were held go on, cuts off connections past their deadline, ends requests
past theirs, and takes requests without a first byte away from replicas that are stalled, fail their health check, or
take too long for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from plumage.routing.interface import RoutingPolicy
from plumage_router.audit import Audit, Record
from plumage_router.auth import Auth, Tenant
from plumage_router.bridge import Application, BridgedRequest
from plumage_router.client import ClientConnection
from plumage_router.clock import monotonic, wall
from plumage_router.config import RouterConfig
from plumage_router.decide import Decider, Decision
from plumage_router.directory import DirectoryLink
from plumage_router.errors import RequestError, bad_request, overloaded, unauthorized
from plumage_router.exchange import Exchange
from plumage_router.hold import Hold
from plumage_router.hottest import Hottest
from plumage_router.membership import Membership
from plumage_router.metrics import Metrics
from plumage_router.prompt import CHAT_PATH, COMPLETION_PATH, PromptReader
from plumage_router.replicas import Fleet, Replica
from plumage_router.request import Handler, Request
from plumage_router.reuse import Reuse
from plumage_router.wire import JSON, wall_date

__all__ = ["Gateway"]

TICK: Final = 0.1
REFUSED_AT_ONCE: Final = 128  # connections over the bound that are told so, before accepting is paused
_ID_SAFE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/=+"


class Gateway:
    """The `Host` of every client connection. `name`: of this router, for people. `application`: makes
    what answers all but completions. `pause_accepting`: called when too many connections are open. `serving` is False
    once the router shuts down; `leaving` before that, while it still serves but wants nobody new. `config_error`: what
    of a changed configuration file is not in force."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        name: str,
        auth: Auth,
        fleet: Fleet,
        reader: PromptReader,
        decider: Decider,
        policy: RoutingPolicy,
        hottest: Hottest,
        membership: Membership,
        directory: DirectoryLink,
        application: Callable[[Gateway], Application],
        pause_accepting: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.name = name
        self.limits = config.limits
        self.timeouts = config.timeouts
        self.auth = auth
        self.fleet = fleet
        self.reader = reader
        self.decider = decider
        self.policy = policy
        self.metrics = Metrics()
        self.audit = Audit(config.audit_size)
        self.hottest = hottest
        self.hold = Hold(config.hold)
        self.reuse = Reuse()
        self.membership = membership
        self.directory = directory
        self.pause_accepting = pause_accepting
        self.flights: set[Exchange] = set()
        self.connections: set[ClientConnection] = set()
        self.serving = True
        self.leaving = False
        self.config_error: str | None = None
        self.started = wall()
        self.tick = monotonic()
        self.date = wall_date(wall())
        self.buffered = 0
        self.engine_key: bytes | None = None
        self._loop = loop
        self._heads: dict[tuple[bytes, str], bytes] = {}
        self._id_prefix = secrets.token_hex(6)
        self._id_count = 0
        self._application = application(self)

    @property
    def degraded(self) -> bool:
        """Is the directory away, or was none given?"""
        return self.directory.degraded

    @property
    def ready(self) -> bool:
        """May clients be sent here? With room for requests that wait, also while no replica can be chosen."""
        able = self.hold.open or bool(self.fleet.candidates(self.tick))
        return self.keeps_alive and self.membership.listed and able

    @property
    def keeps_alive(self) -> bool:
        """May a client send its next request here too?"""
        return self.serving and not self.leaving

    def use(self, config: RouterConfig, policy: RoutingPolicy) -> None:
        """The configuration changed. Connections that are open keep their limits and timeouts."""
        self.config, self.policy = config, policy
        self.limits, self.timeouts, self.hold.config = config.limits, config.timeouts, config.hold

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

    def handler(self, request: Request, connection: ClientConnection) -> Handler:
        if request.method == b"POST" and request.target.partition(b"?")[0] in (CHAT_PATH, COMPLETION_PATH):
            return Exchange(self, request, connection)
        return BridgedRequest(self._application, request, connection, self._loop)

    def refused(self, error: RequestError) -> None:
        self.count_error(error)

    # -- for exchanges ------------------------------------------------------------------------------------------------

    def request_id(self, request: Request) -> str:
        """The client's own id where it is short and plain, else one of ours."""
        given = request.headers.get(b"x-request-id")
        if given and len(given) <= 128 and not given.translate(None, _ID_SAFE):
            return given.decode("ascii")
        self._id_count += 1
        return f"{self._id_prefix}-{self._id_count:x}"

    def authenticate(self, request: Request) -> Tenant:
        tenant = self.auth.tenant(request.headers)
        if tenant is None:
            raise unauthorized("A valid API key is needed: Authorization: Bearer KEY.")
        return tenant

    def wants_explanation(self, request: Request) -> bool:
        if b"x-plumage-explain" not in request.headers:
            return False
        if not self.auth.is_admin(request.headers):
            raise RequestError(403, f"X-Plumage-Explain: {self.auth.admin_refusal}", code="admin_key")
        return request.headers[b"x-plumage-explain"].strip() not in (b"0", b"")

    def check_load(self) -> None:
        if not self.serving:
            raise overloaded("The router is shutting down.")
        if len(self.flights) >= self.limits.max_in_flight:
            raise overloaded("Too many requests are under way.")

    def check_media_type(self, request: Request) -> None:
        headers = request.headers
        kind = headers.get(b"content-type")
        if kind is not None and kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
            raise RequestError(415, "The body must be application/json.", code="media_type")
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise RequestError(415, "Compressed bodies are not accepted.", code="content_encoding")
        if not request.body:
            raise bad_request("The body is empty.", code="invalid_json")

    def upstream_head(self, path: bytes, replica: Replica) -> bytes:
        """The lines of a request that are the same for every request to this replica."""
        key = (path, replica.member.url)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 4 * max(64, len(self.fleet)):
                self._heads.clear()
            head = self._heads[key] = self._make_head(path, replica)
        return head

    def _make_head(self, path: bytes, replica: Replica) -> bytes:
        host, port = replica.member.address()
        name = f"[{host}]" if ":" in host else host
        secret = b"authorization: Bearer %b\r\n" % self.engine_key if self.engine_key else b""
        return b"POST %b HTTP/1.1\r\nhost: %b:%d\r\ncontent-type: application/json\r\n%b" % (
            path, name.encode(), port, secret,
        )  # fmt: skip

    def use_engine_key(self, key: bytes | None) -> None:
        """The engines' key changed."""
        self.engine_key = key
        self._heads.clear()

    def note(self, decision: Decision, request_id: str, tenant: Tenant | None) -> Record:
        if decision.depth:
            self.hottest.count(decision.prompt.chunks[decision.depth - 1], decision.ticket.hit_tokens)
        return self.audit.note(
            decision,
            request_id=request_id,
            at=wall(),
            tenant=tenant.name if tenant is not None else "",
            policy=self.policy.name,
            degraded=self.degraded,
        )

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
        """One tick."""
        now = self.tick = monotonic()
        self.date = wall_date(wall())
        self.metrics.settle()
        self.hold.wait.settle()
        self.reuse.age(now)
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire()
        if len(self.hold):
            self._sweep_held(now)
        self._sweep_flights(now)

    def _sweep_held(self, now: float) -> None:
        if self.fleet.candidates(now):
            self.hold.release(now)
        self.hold.expire(now, self.fleet.why_none(now))

    def _sweep_flights(self, now: float) -> None:
        silent = any(replica.silent for replica in self.fleet) and bool(self.fleet.candidates(now))
        bound = now - self.timeouts.request
        for flight in tuple(self.flights):
            if flight.arrived < bound:
                flight.expire()
            elif silent and not flight.answering and flight.replica is not None and flight.replica.silent:
                flight.leave_silent()
            else:
                flight.check_pace(now)
