"""The tracing of a router process, which follows its configuration while it runs."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from plumage.settings.router_config import TracingConfig

if TYPE_CHECKING:  # a slow import, which few routers need
    from plumage_router.proxy.tracing import Tracing

__all__ = ["LiveTracing"]

_CLOSE_TIMEOUT: Final = 2.0  # seconds that `close` waits for the last spans


class LiveTracing:
    """One for all pools of the process. `current`: None while no request is traced. instance: name of this router."""

    def __init__(self, instance: str) -> None:
        self.current: Tracing | None = None
        self._instance = instance
        self._config: TracingConfig | None = None

    async def follow(self, config: TracingConfig | None) -> None:
        """Uses this configuration. Requests that are under way end their traces by the one before."""
        if config == self._config:
            return
        before, self._config = self.current, config
        self.current = None if config is None else await asyncio.to_thread(_make, config, self._instance)
        if before is not None:
            before.close(0.0)

    async def close(self) -> None:
        """Waits briefly until the last spans are exported."""
        before, self.current, self._config = self.current, None, None
        if before is not None:
            await asyncio.to_thread(before.close, _CLOSE_TIMEOUT)


def _make(config: TracingConfig, instance: str) -> Tracing:
    from plumage_router.proxy.tracing import Tracing

    return Tracing(config, instance=instance, rng=random.Random())
