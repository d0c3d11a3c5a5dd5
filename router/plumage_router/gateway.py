"""One pool as its requests see it: its parts, those under way, and the slow tick that keeps time for them.

The gateway gives each request its handler: an exchange for completions, the control surface for all else. Once a tick
it moves the coarse clock, lets requests that were held go on, cuts off connections past their deadline, ends requests
past theirs, and takes requests without a first byte away from replicas that are stalled, fail their health check, or
take too long for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import xxhash

from plumage.routing.interface import RoutingPolicy
from plumage_router.audit import Audit, Record
from plumage_router.auth import Auth, Tenant
from plumage_router.bridge import Application, BridgedRequest
from plumage_router.client import ClientConnection
from plumage_router.clock import monotonic, wall
from plumage_router.config import PoolConfig
from plumage_router.decide import Decider, Decision
from plumage_router.directory import DirectoryLink
from plumage_router.engine_keys import EngineKeys, Salts
from plumage_router.entrance import Entrance, is_completion
from plumage_router.errors import overloaded, quarantined
from plumage_router.exchange import Exchange
from plumage_router.hold import Hold
from plumage_router.hottest import Hottest
from plumage_router.membership import Membership
from plumage_router.prompt import Prompt, PromptReader
from plumage_router.quarantine import Quarantine
from plumage_router.replicas import Fleet, Replica
from plumage_router.request import Handler, Request
from plumage_router.reuse import Reuse

__all__ = ["TICK", "Gateway"]

TICK: Final = 0.1


class Gateway(Entrance):
    """`name`: of this router, for people. `application`: makes what answers all but completions. Behind a front it has
    no connections of its own: the front finds the pool, and `take` gives the request its exchange."""

    def __init__(
        self,
        config: PoolConfig,
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
        super().__init__(
            config.limits,
            config.timeouts,
            auth,
            access_log=config.access_log,
            pause_accepting=pause_accepting,
            loop=loop,
        )
        self.config = config
        self.name = name
        self.fleet = fleet
        self.reader = reader
        reader.passed = frozenset(config.allowed_request_fields)
        self.decider = decider
        self.policy = policy
        self.audit = Audit(config.audit_size)
        self.hottest = hottest
        self.hold = Hold(config.hold)
        self.quarantine = Quarantine(config.quarantine)
        self._digest_seed = secrets.randbits(64)  # so that nobody can make another body with the same digest
        self.reuse = Reuse()
        self.membership = membership
        self.directory = directory
        self.flights: set[Exchange] = set()
        self.engine_keys = EngineKeys()
        self.salts = Salts()
        self.secret_error: str | None = None
        self._heads: dict[tuple[bytes, str, bytes | None], bytes] = {}
        self.application = application(self)

    @property
    def degraded(self) -> bool:
        """Is the directory away, or was none given?"""
        return self.directory.degraded

    @property
    def ready(self) -> bool:
        """May clients be sent here? With room for requests that wait, also while no replica can be chosen."""
        able = self.hold.open or bool(self.fleet.candidates(self.tick))
        return self.keeps_alive and self.membership.listed and able

    def use(self, config: PoolConfig, policy: RoutingPolicy) -> None:
        """The configuration changed. Connections that are open keep their limits and timeouts."""
        self.config, self.policy = config, policy
        self.limits, self.timeouts, self.hold.config = config.limits, config.timeouts, config.hold
        self.quarantine.config = config.quarantine
        self.room.use(config.limits.max_buffered_bytes)
        self.reader.passed = frozenset(config.allowed_request_fields)

    def handler(self, request: Request, connection: ClientConnection) -> Handler:
        if is_completion(request):
            return Exchange(self, request, connection)
        return self.answer(request, connection)

    def answer(self, request: Request, connection: ClientConnection) -> Handler:
        """The control surface's."""
        return BridgedRequest(self.application, request, connection, self._loop, self.log_access)

    def take(self, request: Request, connection: ClientConnection, body: Mapping[str, Any]) -> Handler:
        """A completion whose body was read by whoever found that it is for this pool."""
        return Exchange(self, request, connection, body)

    # -- for exchanges ------------------------------------------------------------------------------------------------

    def check_load(self) -> None:
        if not self.serving:
            raise overloaded("The router is shutting down.")
        if len(self.flights) >= self.limits.max_in_flight:
            raise overloaded("Too many requests are under way.")

    def check_quarantine(self, prompt: Prompt) -> None:
        """RequestError while the body is refused because engines failed on it."""
        if self.quarantine and (left := self.quarantine.left(self._digest(prompt), monotonic())):
            raise quarantined(left)

    def strike(self, prompt: Prompt, replica: Replica) -> bool:
        """A replica failed on the body. True when it is refused from now on."""
        return self.quarantine.strike(self._digest(prompt), replica.id, monotonic())

    def clear(self, prompt: Prompt) -> None:
        """The body got its whole answer."""
        if self.quarantine:
            self.quarantine.clear(self._digest(prompt))

    def _digest(self, prompt: Prompt) -> bytes:
        """Of the bytes that engines get; kept, since they are freed once an answer begins."""
        if prompt.digest is None:
            prompt.digest = xxhash.xxh3_128_digest(prompt.payload, seed=self._digest_seed)
        return prompt.digest

    def free(self, prompt: Prompt) -> None:
        """No other replica will be tried: frees what only another try would need."""
        self._digest(prompt)
        prompt.forget()

    def upstream_head(self, path: bytes, replica: Replica) -> bytes:
        """The lines of a request that are the same for every request to this replica."""
        secret = self.engine_keys.of(replica.member.url)
        key = (path, replica.member.url, secret)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 4 * max(64, len(self.fleet)):
                self._heads.clear()
            head = self._heads[key] = self._make_head(path, replica, secret)
        return head

    def _make_head(self, path: bytes, replica: Replica, secret: bytes | None) -> bytes:
        host, port = replica.member.address()
        name = f"[{host}]" if ":" in host else host
        authorization = b"authorization: Bearer %b\r\n" % secret if secret else b""
        return b"POST %b HTTP/1.1\r\nhost: %b:%d\r\ncontent-type: application/json\r\n%b" % (
            path, name.encode(), port, authorization,
        )  # fmt: skip

    def use_engine_keys(self, present: bytes | None, previous: bytes | None) -> None:
        """The engines' keys changed."""
        self.engine_keys.use(present, previous)
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

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """One tick."""
        super().sweep()
        now = self.tick
        self.hold.wait.settle()
        self.reuse.age(now)
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
