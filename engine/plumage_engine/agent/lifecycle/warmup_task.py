"""Warms up the engine after each of its starts, from the agents of the pool's other replicas."""

from __future__ import annotations

import asyncio
import logging
import random

from pydantic import SecretStr

from plumage.errors import ConfigurationError
from plumage.settings.agent_config import AgentConfig
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.lifecycle.state_watch import StateWatch
from plumage_engine.agent.warmup import WarmupResult, find_peers, warm
from plumage_engine.configuration import read_secret

__all__ = ["WarmupTask"]

log = logging.getLogger(__name__)


class WarmupTask:
    """token: the agent's own, which opens the routes of its peers outside of a cluster."""

    def __init__(
        self, config: AgentConfig, engine: EngineClient, watch: StateWatch, token: SecretStr | None, rng: random.Random
    ) -> None:
        self._config = config
        self._engine = engine
        self._watch = watch
        self._token = token
        self._rng = rng

    async def run(self) -> None:
        """Until cancelled."""
        cold = self._watch.cold
        while True:
            await cold.wait()
            cold.clear()
            result = await self._warm()
            if not cold.is_set():  # else the engine has restarted meanwhile
                log.info("%s warmed: %s", self._config.replica, result)
                self._watch.finish_warmup(result)

    async def _warm(self) -> WarmupResult:
        config = self._config.warmup
        peers = await asyncio.to_thread(find_peers, config, self._config.replica) if config.enabled else []
        model = self._config.served_model or self._config.model
        return await warm(self._engine, model, peers, config, self._peer_token(), self._rng)

    def _peer_token(self) -> SecretStr | None:
        """The token for peers' routes. In a cluster it is the pod's own identity, a file that the kubelet renews, so
        it is read for each warm-up."""
        path = self._config.peer_token_file
        try:
            return self._token if path is None else read_secret(path)
        except ConfigurationError as error:
            log.warning("no peer will answer: %s", error)
            return None
