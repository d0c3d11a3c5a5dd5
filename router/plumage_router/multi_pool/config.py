"""The configuration of a router for several pools: one JSON file. Pools may change while it runs (`server.py`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator

from plumage.incluster.config import ApiServerConfig
from plumage_router.config import (
    AuthConfig,
    LimitsConfig,
    ListenConfig,
    PoolConfig,
    Section,
    TimeoutsConfig,
    read_config,
)

__all__ = ["MAX_POOLS", "MultiPoolConfig", "NamedPoolConfig", "is_multi_pool", "load_multi_pool"]

MAX_POOLS = 64
"""Each pool has its own mirror, health checker and connections."""


class NamedPoolConfig(PoolConfig):
    """A pool, and the model names by which clients reach it, including its adapters."""

    names: tuple[str, ...] = Field(min_length=1)


class MultiPoolConfig(Section):
    """The whole file. gateway: the name of the InferenceGateway.

    limits, timeouts: of client connections; `maxInFlight` is for all pools together. Each pool has its own as well.
    """

    gateway: str = Field(min_length=1)
    listen: ListenConfig = ListenConfig()
    router_id: str | None = None
    auth: AuthConfig = AuthConfig()
    api_server: ApiServerConfig = ApiServerConfig()
    access_log: bool = False
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    pools: tuple[NamedPoolConfig, ...] = Field(default=(), max_length=MAX_POOLS)

    @model_validator(mode="after")
    def _unique(self) -> MultiPoolConfig:
        for what, names in (("pool", self._pool_names()), ("model", self._model_names())):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(f"pools: the {what} {', '.join(sorted(twice))} is there twice")
        return self

    def _pool_names(self) -> Iterator[str]:
        return (pool.pool for pool in self.pools)

    def _model_names(self) -> Iterator[str]:
        return (name for pool in self.pools for name in pool.names)


def load_multi_pool(path: Path) -> MultiPoolConfig:
    """Returns the file's content. Raises ConfigurationError with all errors in it."""
    return read_config(path, MultiPoolConfig)


def is_multi_pool(path: Path) -> bool:
    """Whether the file is for several pools. False for an unreadable file: the router of one pool reports the error."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "gateway" in content
