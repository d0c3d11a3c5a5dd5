"""The entry point of vLLM's API server (`vllm.endpoint_plugins`; switched on by VLLM_PLUGINS=plumage): it puts the
routes of `routes.api_server` around vLLM's application and ties them to the engine core."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from plumage_engine.configuration import read_secret
from plumage_engine.vllm import plugin
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.routes.api_server import PREFIX, TOKEN_FILE, App, FleetRoutes
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics
from plumage_engine.vllm.settings import read_settings

__all__ = ["PlumageEndpoints"]

_log = logging.getLogger("vllm.plumage")


class PlumageEndpoints:
    """What vLLM's API server makes of the entry point: `attach_router` first, `init_state` before it serves."""

    name = "plumage"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.routes = FleetRoutes()

    def attach_router(self, app: Any) -> None:
        """Routes added here would stand behind vLLM's own middleware and its API key, so ours go around all of it."""
        own = app.build_middleware_stack

        def build() -> App:
            self.routes.app = own()
            return self.routes

        app.build_middleware_stack = build

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """ConfigurationError, which ends the server, for settings or a token file that can't work. What vLLM has moved
        ends nothing."""
        config = getattr(engine_client, "vllm_config", None)
        settings = read_settings(getattr(config, "additional_config", None), os.environ)
        file = settings.fleet.admin_token_file if settings is not None else None
        self.routes.token = read_secret(file or _path(os.environ.get(TOKEN_FILE)))
        told = getattr(args, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
        self.routes.api_keys = tuple(key for key in told if key)
        scheduler = getattr(config, "scheduler_config", None)
        if settings is None and config is not None and getattr(scheduler, "scheduler_cls", None) != plugin.SCHEDULER:
            return
        guard = Guard("fleet", Counters())
        attempt(guard, lambda: self._begin(engine_client, guard, scheduler))
        if not guard.on:
            self.routes.go_without(guard)
        self.routes.metrics.ignored = 0 if settings is None else len(settings.ignored)

    def _begin(self, engine_client: Any, guard: Guard, scheduler: Any) -> None:
        """scheduler: vLLM's SchedulerConfig."""
        from plumage_engine.vllm.compat import entrypoints

        _register(self.routes.metrics, entrypoints)
        if reasons := entrypoints.complaints(engine_client):
            guard.refuse(reasons)
            return
        core = engine_client.engine_core

        async def ask(name: str, body: bytes) -> tuple[int, bytes]:
            try:
                status, content = await core.call_utility_async("plumage", name, body)
            except Exception as error:
                if entrypoints.lacks(error, "plumage"):
                    self.routes.go_without(plugin.absent(scheduler))
                raise
            return status, bytes(content)

        self.routes.ask = ask


def _register(metrics: PluginMetrics, entrypoints: Any) -> None:
    registry = entrypoints.get_prometheus_registry()
    if entrypoints.registry_is_shared(registry):
        registry.register(metrics)
    else:
        _log.warning("plumage: with several API servers /metrics lacks our counters; see %sstats", PREFIX)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
