"""What all requests of one pool share: its settings, replicas, decisions, limits and books."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import xxhash

from plumage.directory.mirror.mirror import Mirror
from plumage.routing.adapters import AdapterSlots
from plumage.routing.interface import RoutingPolicy
from plumage.settings.router_config import PoolConfig
from plumage_router.clock import monotonic, wall
from plumage_router.directory.link import DirectoryLink
from plumage_router.fleet.breaker import Breaker
from plumage_router.fleet.engine_keys import EngineKeys, Salts
from plumage_router.fleet.outliers import Outliers
from plumage_router.fleet.replicas import Fleet, Load, Member, Replica
from plumage_router.http.auth import Auth, Tenant
from plumage_router.http.errors import RequestError, adapter_away, adapter_missing, overloaded, quarantined
from plumage_router.http.json_lines import JsonLines
from plumage_router.http.listener import Listener
from plumage_router.http.paths import FORM_PATHS
from plumage_router.http.request import Request
from plumage_router.http.upstream import ConnectionPool
from plumage_router.process.engine_tls import UNVERIFIED, EngineTls
from plumage_router.proxy.flow_control import FlowControl, Passage, QueuedRequest
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.proxy.quotas import Quotas, Spending
from plumage_router.proxy.retry_budget import RetryBudget
from plumage_router.proxy.tenant_usage import TenantUsage, TokensUsed, UsageLog
from plumage_router.proxy.wait_queue import WaitingRequest, WaitQueue, no_replica_yet
from plumage_router.request.body import splice
from plumage_router.request.model import Model
from plumage_router.request.prompt import Prompt
from plumage_router.request.quarantine import Quarantine
from plumage_router.request.response_ids import RANDOM_BYTES, find_replica, response_id
from plumage_router.routing.decider import Decider, Decision
from plumage_router.routing.decision_log import Audit, CacheCurve, HotPrefixes, Record
from plumage_router.routing.prefix_breaks import PrefixBreak, PrefixBreaks

__all__ = ["InFlightRequest", "PoolState"]

log = logging.getLogger(__name__)

_ANSWER_TOKENS: Final = 256  # taken from a quota for an answer without a limit
_CONTEXT: Final = 131_072  # tokens, if the manifest does not say


class InFlightRequest(WaitingRequest, QueuedRequest, Protocol):
    """A request as the pool's tick sees it. `arrived`: seconds of the router's clock."""

    arrived: float

    @property
    def answering(self) -> bool: ...

    @property
    def replica(self) -> Replica | None: ...

    def expire(self) -> None: ...

    def leave_silent_replica(self) -> None: ...

    def check_timeouts(self, now: float) -> None: ...


class PoolState(Listener):
    """`name`: of this router, for people. `in_flight`: the requests that are being served.

    `secret_error`: why a secret file is not in force; None while all are.
    """

    def __init__(
        self,
        config: PoolConfig,
        model: Model,
        policy: RoutingPolicy,
        *,
        name: str,
        auth: Auth,
        tracing: LiveTracing,
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
        self.policy = policy
        self.reader = model.reader
        self._configure_reader(config)
        self.engine_tls = None if config.engine_tls is None else EngineTls(config.engine_tls)
        self.fleet = Fleet(self._connections_to, lambda: Breaker(self.config.breaker))
        self.outliers = Outliers(self.fleet, config.pool)
        self.decider = Decider(
            Mirror(config.limits.max_directory_chunks),
            policy,
            self.fleet.load_of,
            pending_seconds=config.timeouts.pending_owner,
        )
        self.decider.most_tokens = float(config.model.max_length or _CONTEXT)
        self.decider.adapters = AdapterSlots(config.model.adapter_slots, len(config.model.adapters))
        self.hot_prefixes = HotPrefixes()
        self.directory = DirectoryLink(
            config.directory,
            pool=config.pool,
            router=name,
            fleet=self.fleet,
            decider=self.decider,
            hot_prefixes=self.hot_prefixes,
            engine=model.engine,
        )
        self.tracing = tracing
        self.audit = Audit(config.audit_size)
        self.cache_curve = CacheCurve()
        self.prefix_breaks = PrefixBreaks(self.decider.rate.of)
        self.wait_queue = WaitQueue(config.hold)
        self.flow_control = FlowControl(config.flow_control, self.fleet, self.decider.mirror.match, loop=loop)
        self._watch_starts()
        self.quarantine = Quarantine(config.quarantine)
        self.retry_budget = RetryBudget()
        process = f"{name}.{secrets.token_hex(4)}"  # another one after a restart
        self.quotas = Quotas(config.quotas, url=config.directory, pool=config.pool, name=process)
        self.usage = TenantUsage()
        self.usage_lines = (self.access_log or JsonLines()) if config.usage_log else None
        self.usage_log: UsageLog | None = None
        if self.usage_lines is not None:
            self.usage_log = UsageLog(self.usage, self.usage_lines.offer, wall=wall, pool=config.pool, router=process)
        self.in_flight: set[InFlightRequest] = set()
        self.engine_keys = EngineKeys()
        self.salts = Salts()
        self.secret_error: str | None = None
        self._digest_seed = secrets.randbits(64)  # so that no client can make another body with the same digest
        self._heads: dict[tuple[bytes, str], tuple[bytes, bytes | None]] = {}

    def _connections_to(self, member: Member) -> ConnectionPool:
        if member.secure and self.engine_tls is None:
            log.warning("replica %s serves TLS, and without engineTls its certificate is not verified", member.id)
        limits, timeouts = self.config.limits, self.config.timeouts
        return ConnectionPool(
            *member.address(),
            self._loop,
            max_idle=limits.max_idle_per_replica,
            connect_timeout=timeouts.connect,
            tls=(self.engine_tls or UNVERIFIED) if member.secure else None,
        )

    def configure(self, config: PoolConfig, policy: RoutingPolicy) -> None:
        """Uses another configuration. Connections that are open keep their limits and timeouts."""
        self.config, self.policy = config, policy
        self.limits, self.timeouts = config.limits, config.timeouts
        self.wait_queue.config, self.quarantine.config = config.hold, config.quarantine
        self.body_memory.resize(config.limits.max_buffered_bytes)
        self.quotas.configure(config.quotas)
        if config.flow_control != self.flow_control.config:
            self.flow_control.configure(config.flow_control)
            self._watch_starts()
        self._configure_reader(config)
        self.decider.policy = policy
        self.directory.configure(policy, config.timeouts.pending_owner)
        for replica in self.fleet:
            limits, timeouts = config.limits, config.timeouts
            replica.connections.configure(max_idle=limits.max_idle_per_replica, connect_timeout=timeouts.connect)
            replica.breaker.configure(config.breaker)

    def _watch_starts(self) -> None:
        """Only flow control needs to know what each replica starts."""
        self.decider.started = self.flow_control.started if self.config.flow_control is not None else None

    def _configure_reader(self, config: PoolConfig) -> None:
        self.reader.allowed_fields = frozenset(config.allowed_request_fields)
        self.reader.sort_tools = config.sort_tools

    def check_load(self) -> None:
        """Raises RequestError when the router takes no further request."""
        if not self.serving:
            raise overloaded("The router is shutting down.")
        if len(self.in_flight) >= self.limits.max_in_flight:
            raise overloaded("Too many requests are in flight.")

    def classify(self, request: Request, prompt: Prompt, tokens: int) -> Passage | None:
        """The request's place in the queue; None if it needs none. Raises RequestError for a wrong header.
        tokens: that its prompt is expected to have.

        A request that continues a stored response has no choice of a replica, so it does not wait for one.
        """
        if self.config.flow_control is None or not prompt.uses_device or prompt.previous is not None:
            return None
        return self.flow_control.classify(
            request.headers,
            request.tenant.name if request.tenant is not None else "",
            prompt_tokens=tokens,
            answers=prompt.answers if prompt.generates else 0,
            most_tokens=prompt.answer,
            chunks=prompt.chunks,
        )

    def turn_away_waiting(self, why: str = "the router is shutting down") -> None:
        """Turns away all requests that wait in a queue, so that their clients ask another router."""
        self.wait_queue.close(why)
        self.flow_control.close(no_replica_yet(why))

    # -- quotas -------------------------------------------------------------------------------------------------------

    def spend(
        self, prompt: Prompt, tenant: Tenant | None, tokens: int, decided: Callable[[RequestError | None], None]
    ) -> Spending | None:
        """Takes the request from its tenant's quotas; None without a quota. Raises RequestError over a limit, or for a
        model that the tenant may not use.

        tokens: that the prompt is expected to have. decided: called later if the result `waits` for the other routers.
        """
        if not self.config.quotas or prompt.of_response:
            return None
        answer = self.tokens_of_answer(prompt) if prompt.generates or prompt.audio_tokens else 0
        name = tenant.name if tenant is not None else ""
        self.quotas.check_model(name, prompt.model)
        return self.quotas.take(name, tokens + answer, decided)

    def may_use(self, tenant: Tenant | None, model: str) -> bool:
        """Whether the tenant may ask for the model."""
        models = self.quotas.models(tenant.name if tenant is not None else "")
        return models is None or model in models

    def check_quota(self, tenant: Tenant | None) -> None:
        """Raises RequestError if the tenant is over its quota whatever its next request needs."""
        if self.config.quotas:
            self.quotas.check(tenant.name if tenant is not None else "")

    def tokens_of_prompt(self, prompt: Prompt) -> int:
        """The expected number, at most the model's context for each prompt."""
        if not prompt.uses_device:
            return 0
        if prompt.audio_tokens:
            return prompt.audio_tokens
        text = prompt.text if prompt.text and prompt.prompts == 1 else prompt.payload
        most = (self.config.model.max_length or _CONTEXT) * prompt.prompts
        return min(most, math.ceil(len(text) / self.decider.rate.of(text)))

    def tokens_of_answer(self, prompt: Prompt) -> int:
        """The most that the client asked for, for all answers; without a limit what a quota takes."""
        return (prompt.answer or _ANSWER_TOKENS) * prompt.answers

    def count_usage(self, tenant: Tenant | None, model: str, used: TokensUsed) -> None:
        """A request was answered, at least in part."""
        self.usage.add(tenant.name if tenant is not None else "", model, used)

    # -- stored responses ---------------------------------------------------------------------------------------------

    def with_adapter(self, adapter: str) -> Callable[[Sequence[Load]], Sequence[Load]] | None:
        """Chooses the replicas that have loaded the adapter; None for the base model."""
        return partial(self.decider.adapters.serving, adapter) if adapter else None

    def without_adapter(self, prompt: Prompt, now: float) -> RequestError:
        """The error where other replicas are available, and none that has loaded the prompt's adapter."""
        only = self.with_adapter(prompt.adapter)
        why = self.fleet.why_none(now, only)
        return adapter_away(prompt.model, why) if why else adapter_missing(prompt.model)

    def named_response(self, prompt: Prompt, replica: Replica) -> bytes:
        """The body for this replica. In the Responses API it has the id of the response to come."""
        if prompt.id_salt is None or prompt.of_response:
            return prompt.payload
        name = response_id(secrets.token_bytes(RANDOM_BYTES), prompt.id_salt, replica.id)
        return splice(prompt.payload, {"request_id": name})

    def stores_previous(self, prompt: Prompt) -> Replica | None:
        """The replica that stores the response which this request continues or names; None if there is none."""
        return self._storing(prompt.previous or "", prompt.id_salt or "")

    def stores(self, response: str, tenant: Tenant | None) -> bool:
        """Whether a replica of this pool stores the tenant's response."""
        return self._storing(response, self.salt_of(tenant)) is not None

    def _storing(self, response: str, salt: str) -> Replica | None:
        return find_replica(response, salt, ((replica.id, replica) for replica in self.fleet))

    def salt_of(self, tenant: Tenant | None) -> str:
        """What keeps the tenant's cached prefixes apart; empty without keys."""
        return self.salts.of(tenant) if self.auth.enabled else ""

    # -- quarantine ---------------------------------------------------------------------------------------------------

    def check_quarantine(self, prompt: Prompt) -> None:
        """Raises RequestError while the body is refused because engines failed on it."""
        if self.quarantine.cases and (left := self.quarantine.left(self._digest(prompt), monotonic())):
            raise quarantined(left)

    def strike(self, prompt: Prompt, replica: Replica) -> bool:
        """A replica failed on the body. Returns True if the body is refused from now on."""
        return self.quarantine.strike(self._digest(prompt), replica.id, monotonic())

    def clear_quarantine(self, prompt: Prompt) -> None:
        """The body got a complete answer."""
        if self.quarantine.cases:
            self.quarantine.clear(self._digest(prompt))

    def free(self, prompt: Prompt) -> None:
        """No other replica will be tried: frees the payload, after its digest is known."""
        self._digest(prompt)
        prompt.forget()

    def _digest(self, prompt: Prompt) -> bytes:
        """The digest of the path and the bytes that engines get: endpoints may get equal bodies."""
        if prompt.digest is None:
            made = xxhash.xxh3_128(prompt.path, seed=self._digest_seed)
            made.update(prompt.payload)
            prompt.digest = made.digest()
        return prompt.digest

    # -- engines ------------------------------------------------------------------------------------------------------

    def upstream_head(self, prompt: Prompt, replica: Replica) -> tuple[bytes, bytes | None]:
        """The header lines that all requests to this replica share, and the engine key in them."""
        if prompt.of_response:  # each has a path of its own
            secret = self.engine_keys.of(replica.member.url)
            return _make_head(b"%b %b" % (prompt.method, prompt.path), replica, secret), secret
        path = prompt.path
        key = (path, replica.member.url)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 4 * max(64, len(self.fleet)):
                self._heads.clear()
            secret = self.engine_keys.of(replica.member.url)
            made = _make_head(b"POST %b" % path, replica, secret)
            if path not in FORM_PATHS:  # a form has its boundary there
                made += b"content-type: application/json\r\n"
            head = self._heads[key] = made, secret
        return head

    def use_other_engine_key(self, replica: Replica, refused: Sequence[bytes]) -> bool:
        """The engine refused these keys. Returns whether there is another one, which `upstream_head` then uses."""
        self._heads.clear()
        return self.engine_keys.refused(replica.member.url, refused) is not None

    def use_engine_keys(self, current: bytes | None, previous: bytes | None) -> None:
        """The engines' keys changed."""
        self.engine_keys.use(current, previous)
        self._heads.clear()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def first_decision(self, decision: Decision, now: float) -> PrefixBreak | None:
        """Counts a request once, however often it is retried. Returns how it broke its conversation's prefix."""
        self.cache_curve.add(decision.prompt.chunks)
        self.metrics.sorted_tools += decision.prompt.sorted_tools
        return self.prefix_breaks.check(decision.prompt, decision.depth, now)

    def record_decision(self, decision: Decision, request_id: str, tenant: Tenant | None) -> Record:
        if decision.depth:
            self.hot_prefixes.count(decision.prompt.chunks[decision.depth - 1], decision.ticket.hit_tokens)
        return self.audit.add(
            decision,
            request_id=request_id,
            at=wall(),
            tenant=tenant.name if tenant is not None else "",
            policy=self.policy.name,
            degraded=self.directory.degraded,
        )


def _make_head(what: bytes, replica: Replica, secret: bytes | None) -> bytes:
    """what: method and target."""
    host, port = replica.member.address()
    name = f"[{host}]" if ":" in host else host
    authorization = b"authorization: Bearer %b\r\n" % secret if secret else b""
    return b"%b HTTP/1.1\r\nhost: %b:%d\r\n%b" % (what, name.encode(), port, authorization)
