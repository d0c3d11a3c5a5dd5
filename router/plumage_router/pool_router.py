"""The router of one pool: gives each request its handler, follows the replicas, and checks time limits with each tick.

A completion becomes a `ProxiedRequest`; the control surface answers everything else. Behind several pools
(`multi_pool`) a pool has no connections of its own: the dispatcher finds the pool and asks it for the handler.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from plumage.errors import ConfigurationError
from plumage.options import refuse_given
from plumage.routing import make_policy
from plumage.routing.interface import RoutingPolicy
from plumage.settings.router_config import PolicyConfig, PoolConfig
from plumage_router.fleet.health_check import HealthChecker
from plumage_router.fleet.membership import find_members
from plumage_router.fleet.replicas import Replica
from plumage_router.http.asgi import Application, AsgiRequest
from plumage_router.http.auth import Auth, Tenant
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.request import Handler, Request
from plumage_router.process.background import Background
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.proxied_request import ProxiedRequest
from plumage_router.proxy.wait_queue import no_replica_yet
from plumage_router.request.model import Model
from plumage_router.routing.shadow import Shadow

__all__ = ["TICK", "PoolRouter"]

log = logging.getLogger(__name__)

TICK: Final = 0.1  # seconds


class PoolRouter(PoolState):
    """`prepare()`, then `start()`, then `await close()`.

    name: of this router among its peers. application: makes the control surface.
    Raises ConfigurationError when the routing policy is invalid.
    """

    def __init__(
        self,
        config: PoolConfig,
        model: Model,
        *,
        name: str,
        auth: Auth,
        tracing: LiveTracing,
        application: Callable[[PoolRouter], Application],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            config,
            model,
            _make_policy(config.policy, config.seed),
            name=name,
            auth=auth,
            tracing=tracing,
            loop=loop,
        )
        if auth.enabled and config.salt_key_file is None:
            raise ConfigurationError(
                f"pool {config.pool}: auth.apiKeysFile needs saltKeyFile, which keeps tenants apart"
            )
        self.decider.shadow = self._make_shadow(config)
        self.membership = find_members(config, self.fleet, random.Random())
        self.fleet.listen(self._replica_changed)
        self.application = application(self)
        self.completion_handler = partial(ProxiedRequest, self)
        self._health_checker = HealthChecker(
            self.fleet, interval=config.timeouts.probe_interval, timeout=config.timeouts.probe
        )
        self._background = Background(self.metrics)
        self._apply(config)

    # -- start, change, end -------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Reads secrets and the membership file. Raises ConfigurationError without a needed secret."""
        self.engines.read()
        self.directory.start()
        self.membership.poll()

    def start(self) -> None:
        """Starts to follow the replicas and the directory."""
        self._background.start(self.membership.run, self.directory.run, self._health_checker.run)
        self._background.start(self.quota_exchange.run)
        if self.usage_log is not None:
            self._background.start(self.usage_log.run)

    def reconfigure(self, config: PoolConfig) -> None:
        """Applies the settings that may change at runtime. Raises ConfigurationError when the policy is invalid.

        Connections that are open keep their limits and timeouts.
        """
        policy = self.decider.policy
        if config.policy != self.config.policy:
            policy = _make_policy(config.policy, config.seed)
        if config.shadow_policy != self.config.shadow_policy:
            self.decider.shadow = self._make_shadow(config)
        if config.flow_control != self.config.flow_control:
            self.flow_control.configure(config.flow_control)
        self.config = self.engines.config = config
        self.limits, self.timeouts = config.limits, config.timeouts
        self.wait_queue.config, self.quarantine.config = config.wait_queue, config.quarantine
        self.body_memory.resize(config.limits.max_buffered_bytes)
        self.quotas.configure(config.quotas)
        self.decider.policy = policy
        self.directory.configure(policy, config.timeouts.pending_owner)
        self._health_checker.interval = config.timeouts.probe_interval
        self._health_checker.timeout = config.timeouts.probe
        for replica in self.fleet:
            limits, timeouts = config.limits, config.timeouts
            replica.connections.configure(max_idle=limits.max_idle_per_replica, connect_timeout=timeouts.connect)
            replica.breaker.configure(config.breaker)
        self._apply(config)

    def _apply(self, config: PoolConfig) -> None:
        """Only flow control needs to know what each replica starts."""
        self.decider.started = self.flow_control.started if config.flow_control is not None else None
        self.reader.allowed_fields = frozenset(config.allowed_request_fields)
        self.reader.sort_tools = config.sort_tools

    async def close(self) -> None:
        """Stops the background tasks and closes the connections to replicas."""
        await self._background.stop()
        await self.directory.close()
        await self.quota_exchange.close()
        self.fleet.close()
        await asyncio.sleep(0)  # lets the aborted transports call their protocols
        if self.usage_log is not None and (lost := self.usage_log.close()):
            log.warning("pool %s: nobody read the usage log, so %d records of it are lost", self.config.pool, lost)
        self.close_access_log()

    def _make_shadow(self, config: PoolConfig) -> Shadow | None:
        if config.shadow_policy is None:
            return None
        return Shadow(_make_policy(config.shadow_policy, config.seed), self.fleet.loads.__getitem__)

    def _replica_changed(self, replica: Replica, added: bool) -> None:
        if not added:
            self.engines.forget_heads()
            self.decider.policy.forget(replica.slot)
            if self.decider.shadow is not None:
                self.decider.shadow.forget(replica.slot)

    # -- requests -----------------------------------------------------------------------------------------------------

    def stores(self, response: str, tenant: Tenant | None) -> bool:
        """Whether a replica of this pool stores the tenant's response."""
        salt = self.engines.salts.of(tenant) if self.auth.enabled else ""
        return self.stored_responses.find(response, salt) is not None

    def turn_away_waiting(self, why: str = "the router is shutting down") -> None:
        """Turns away all requests that wait in a queue, so that their clients ask another router."""
        self.wait_queue.close(why)
        self.flow_control.close(no_replica_yet(why))

    @property
    def ready(self) -> bool:
        """Whether clients may send requests here: a replica is available, or requests may wait for one.

        A router that knew no caches yet would compute conversations again that others have cached (0334).
        """
        able = self.wait_queue.enabled or bool(self.fleet.candidates(self.tick))
        return self.keeps_alive and self.informed and able

    @property
    def informed(self) -> bool:
        """Whether the members were listed once, and their caches are in the mirror."""
        return self.membership.listed and self.directory.loaded(self.tick)

    def control_handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        return AsgiRequest(self.application, request, connection, self._loop, self.log_access)

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        super().sweep()
        now = self.tick
        self.wait_queue.wait.flush()
        self.outliers.sweep(now)
        self.decider.end_prefills(now)
        self.flow_control.sweep(now)
        self.decisions.sweep(now)
        if len(self.wait_queue):
            if self.fleet.candidates(now):
                self.wait_queue.resume(now)
            self.wait_queue.expire(now, self.fleet.why_none(now))
        self._sweep_in_flight(now)

    def _sweep_in_flight(self, now: float) -> None:
        """Ends requests past their limit. Moves requests without a first byte away from silent replicas."""
        silent = any(replica.silent for replica in self.fleet) and bool(self.fleet.candidates(now))
        bound = now - self.timeouts.request
        for request in tuple(self.in_flight):
            if request.arrived < bound:
                request.expire()
            elif silent and not request.answering and request.replica is not None and request.replica.silent:
                request.leave_silent_replica()
            else:
                request.check_timeouts(now)


def _make_policy(policy: PolicyConfig, seed: int | None) -> RoutingPolicy:
    return make_policy(policy.name, rng=random.Random(seed), **_policy_options(policy))


def _policy_options(policy: PolicyConfig) -> dict[str, Any]:
    options = {**policy.options, **(policy.lbgr if policy.name.startswith("Lbgr") else {})}
    refuse_given(f"routing policy {policy.name}", options, ("name", "rng"))
    return options
