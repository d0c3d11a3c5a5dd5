"""One pool behind a router: its replicas, how one of them is chosen, what is known of their caches."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from plumage.directory.mirror import Mirror
from plumage.errors import ConfigurationError
from plumage.options import refuse_given
from plumage.routing import make_policy
from plumage.routing.interface import RoutingPolicy
from plumage_router.app import make_app
from plumage_router.auth import Auth
from plumage_router.background import Background
from plumage_router.breaker import Breaker
from plumage_router.config import PolicyConfig, PoolConfig
from plumage_router.decide import Decider
from plumage_router.directory import DirectoryLink
from plumage_router.engine_keys import SecretLine
from plumage_router.gateway import Gateway
from plumage_router.hottest import Hottest
from plumage_router.incluster import find_members
from plumage_router.model import Model
from plumage_router.probe import Prober
from plumage_router.replicas import Fleet
from plumage_router.upstream import Pool

__all__ = ["Backend"]

log = logging.getLogger(__name__)


class Backend:
    """`start()`, then `await close()`. name: of the router, among its peers. ConfigurationError where the policy can't
    work."""

    def __init__(
        self,
        config: PoolConfig,
        model: Model,
        *,
        name: str,
        auth: Auth,
        pause_accepting: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.fleet = Fleet(
            lambda host, port: Pool(
                host,
                port,
                loop,
                max_idle=self.config.limits.max_idle_per_replica,
                connect_timeout=self.config.timeouts.connect,
            ),
            lambda: Breaker(self.config.breaker),
        )
        policy = _make_policy(config)
        decider = Decider(
            Mirror(config.limits.max_directory_chunks),
            policy,
            self.fleet.load_of,
            pending=config.timeouts.pending_owner,
        )
        hottest = Hottest()
        self.membership = find_members(config, self.fleet, random.Random())
        self.fleet.listen(self._replica_moved)
        self.directory = DirectoryLink(
            config.directory,
            pool=config.pool,
            router=name,
            fleet=self.fleet,
            decider=decider,
            hottest=hottest,
            engine=model.engine,
        )
        self.gateway = Gateway(
            config,
            name=name,
            auth=auth,
            fleet=self.fleet,
            reader=model.reader,
            decider=decider,
            policy=policy,
            hottest=hottest,
            membership=self.membership,
            directory=self.directory,
            application=make_app,
            pause_accepting=pause_accepting,
            loop=loop,
        )
        self._prober = Prober(self.fleet, interval=config.timeouts.probe_interval, timeout=config.timeouts.probe)
        self._background = Background(self.gateway.metrics)
        self._engine_key = SecretLine(config.engine_api_key_file, "the engines' API key")
        self._previous_key = SecretLine(
            config.previous_engine_api_key_file, "the engines' previous API key", needed=False
        )
        self._salt_key = SecretLine(config.salt_key_file, "the pool's salt key")
        if auth.enabled and config.salt_key_file is None:
            raise ConfigurationError(
                f"pool {config.pool}: auth.apiKeysFile needs saltKeyFile, which sets tenants apart"
            )

    def prepare(self) -> None:
        """What can be known before a task runs: the pool's secrets (ConfigurationError without their files), the
        members in a file."""
        for secret in (self._engine_key, self._previous_key, self._salt_key):
            secret.read()
        self._use_secrets()
        self.directory.start()
        self.membership.poll()

    def start(self) -> None:
        """Follows the replicas and the directory from now on."""
        self._background.begin(self.membership.run, self.directory.run, self._prober.run)

    def use(self, config: PoolConfig) -> None:
        """Another configuration, for what can be changed live. ConfigurationError where its policy can't work."""
        policy = self.gateway.policy if config.policy == self.config.policy else _make_policy(config)
        self.config = config
        self.gateway.use(config, policy)
        self.gateway.decider.policy = policy
        self.directory.use(policy, config.timeouts.pending_owner)
        self._prober.interval, self._prober.timeout = config.timeouts.probe_interval, config.timeouts.probe
        for replica in self.fleet:
            limits, timeouts = config.limits, config.timeouts
            replica.pool.use(max_idle=limits.max_idle_per_replica, connect_timeout=timeouts.connect)
            replica.breaker.use(config.breaker)

    def rotate(self) -> None:
        """Reads the pool's secrets again."""
        secrets = (self._engine_key, self._previous_key, self._salt_key)
        changed = [secret.refresh() for secret in secrets]
        if any(changed):
            log.info("pool %s: keys read again", self.config.pool)
            self._use_secrets()
        self.gateway.secret_error = "; ".join(secret.error for secret in secrets if secret.error) or None

    async def close(self) -> None:
        """Follows nobody any more; connections to replicas are closed."""
        await self._background.end()
        await self.directory.close()
        self.fleet.close()
        await asyncio.sleep(0)  # lets the aborted transports tell their protocols
        self.gateway.end_access_log()

    def _replica_moved(self, replica: Any, came: bool) -> None:
        if not came:
            self.gateway.policy.forget(replica.slot)

    def _use_secrets(self) -> None:
        self.gateway.use_engine_keys(self._engine_key.value, self._previous_key.value)
        self.gateway.salts.use(self._salt_key.value)


def _make_policy(config: PoolConfig) -> RoutingPolicy:
    return make_policy(config.policy.name, rng=random.Random(config.seed), **_options(config.policy))


def _options(policy: PolicyConfig) -> dict[str, Any]:
    options = {**policy.options, **(policy.lbgr if policy.name.startswith("Lbgr") else {})}
    refuse_given(f"routing policy {policy.name}", options, ("name", "rng"))
    return options
