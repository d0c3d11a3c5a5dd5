"""What all requests of one pool share: an object for each concern, such as its queues, quotas and engines."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, Protocol

from plumage.directory.mirror.mirror import Mirror
from plumage.routing.adapters import AdapterSlots
from plumage.routing.interface import RoutingPolicy
from plumage.settings.router_config import PoolConfig
from plumage_router.clock import wall
from plumage_router.directory.link import DirectoryLink
from plumage_router.fleet.breaker import Breaker
from plumage_router.fleet.outliers import Outliers
from plumage_router.fleet.replicas import Fleet, Replica
from plumage_router.http.auth import Auth
from plumage_router.http.json_lines import JsonLines
from plumage_router.http.listener import Listener
from plumage_router.proxy.engine_access import EngineAccess
from plumage_router.proxy.flow_control import FlowControl, QueuedRequest
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.proxy.quota_exchange import QuotaExchange
from plumage_router.proxy.quotas import Quotas
from plumage_router.proxy.retry_budget import RetryBudget
from plumage_router.proxy.stored_responses import StoredResponses
from plumage_router.proxy.tenant_usage import TenantUsage
from plumage_router.proxy.usage_log import UsageLog
from plumage_router.proxy.wait_queue import WaitingRequest, WaitQueue
from plumage_router.request.model import Model
from plumage_router.request.quarantine import Quarantine
from plumage_router.routing.decider import Decider
from plumage_router.routing.decision_log import DecisionLog

__all__ = ["InFlightRequest", "PoolState"]

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
    """`name`: of this router, for people. `reader`: reads requests for the pool's model.

    `engines`: how requests reach them. `decider`, `directory`, `decisions`: choose replicas, follow what these have,
    and keep what was decided. `wait_queue`, `flow_control`: for requests without a replica, and without room.
    `in_flight`: the requests that are being served. `usage_log`: None for a pool without one.
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
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config.limits, config.timeouts, auth, access_log=config.access_log, loop=loop)
        self.config = config
        self.name = name
        self.tracing = tracing
        self.reader = model.reader
        self.engines = EngineAccess(config, loop)
        self.fleet = Fleet(self.engines.connections_to, lambda: Breaker(self.config.breaker))
        self.outliers = Outliers(self.fleet, config.pool)
        self.decider = _make_decider(config, policy, self.fleet)
        self.decisions = DecisionLog(config.audit_size, self.decider.rate.of)
        self.directory = DirectoryLink(
            config.directory,
            pool=config.pool,
            router=name,
            fleet=self.fleet,
            decider=self.decider,
            hot_prefixes=self.decisions.hot_prefixes,
            engine=model.engine,
        )
        self.wait_queue = WaitQueue(config.wait_queue)
        self.flow_control = FlowControl(config.flow_control, self.fleet, self.decider.mirror.match, loop=loop)
        self.in_flight: set[InFlightRequest] = set()
        self.quarantine = Quarantine(config.quarantine)
        self.retry_budget = RetryBudget()
        self.stored_responses = StoredResponses(self.fleet)
        process = f"{name}.{secrets.token_hex(4)}"  # another one after a restart
        self.quotas = Quotas(config.quotas, shared=bool(config.directory))
        self.quota_exchange = QuotaExchange(self.quotas, url=config.directory, pool=config.pool, name=process)
        self.usage = TenantUsage()
        self.usage_log: UsageLog | None = None
        if config.usage_log:
            lines = self.access_log or JsonLines()
            self.usage_log = UsageLog(self.usage, lines, wall=wall, pool=config.pool, router=process)


def _make_decider(config: PoolConfig, policy: RoutingPolicy, fleet: Fleet) -> Decider:
    decider = Decider(
        Mirror(config.limits.max_directory_chunks),
        policy,
        fleet.loads.__getitem__,
        pending_seconds=config.timeouts.pending_owner,
    )
    decider.most_tokens = float(config.model.max_length or _CONTEXT)
    decider.adapters = AdapterSlots(config.model.adapter_slots, len(config.model.adapters))
    return decider
