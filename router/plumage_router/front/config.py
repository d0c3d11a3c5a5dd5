"""What a front is told: one JSON file. Its pools may come, change and go while it runs (`server.py`)."""

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

__all__ = ["MOST_POOLS", "FrontConfig", "FrontPool", "is_front", "load_front"]

MOST_POOLS = 64
"""Each has a mirror, a prober and connections of its own."""


class FrontPool(PoolConfig):
    """A pool, and the names by which clients ask for its model and its adapters: no others lead to it."""

    names: tuple[str, ...] = Field(min_length=1)


class FrontConfig(Section):
    """The whole file. limits, timeouts: of client connections, and `maxInFlight` of all pools together; each pool has
    its own beside them. gateway: what the whole is called."""

    gateway: str = Field(min_length=1)
    listen: ListenConfig = ListenConfig()
    router_id: str | None = None
    auth: AuthConfig = AuthConfig()
    api_server: ApiServerConfig = ApiServerConfig()
    access_log: bool = False
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    pools: tuple[FrontPool, ...] = Field(default=(), max_length=MOST_POOLS)

    @model_validator(mode="after")
    def _once(self) -> FrontConfig:
        for what, names in (("pool", self._pool_names()), ("model", self._model_names())):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(f"pools: the {what} {', '.join(sorted(twice))} stands there twice")
        return self

    def _pool_names(self) -> Iterator[str]:
        return (pool.pool for pool in self.pools)

    def _model_names(self) -> Iterator[str]:
        return (name for pool in self.pools for name in pool.names)


def load_front(path: Path) -> FrontConfig:
    """The file's content, or a ConfigurationError with every mistake in it."""
    return read_config(path, FrontConfig)


def is_front(path: Path) -> bool:
    """Whether the file is of a front; what can't be read is for a router to refuse."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "gateway" in content
