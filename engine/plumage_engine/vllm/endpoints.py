"""The entry point of vLLM's API server (group `vllm.endpoint_plugins`; VLLM_PLUGINS=plumage switches it on).

It wraps vLLM's application in the routes of `routes.api_server` and connects them to the engine core.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from plumage_engine.adapters import AdapterLoader
from plumage_engine.configuration import read_secret
from plumage_engine.vllm import plugin
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.routes.adapters import VllmAdapters
from plumage_engine.vllm.routes.api_server import PREFIX, TOKEN_FILE, ApiServerRoutes, App
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics
from plumage_engine.vllm.settings import read_settings

__all__ = ["PlumageEndpoints"]

_log = logging.getLogger("vllm.plumage")


class PlumageEndpoints:
    """vLLM's API server calls `attach_router` first, and `init_state` before it serves."""

    name = "plumage"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.routes = ApiServerRoutes()

    def attach_router(self, app: Any) -> None:
        """Wrap the application. Routes added to it would stand behind vLLM's own middleware and API key."""
        own = app.build_middleware_stack

        def build() -> App:
            self.routes.app = own()
            return self.routes

        app.build_middleware_stack = build

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Read the settings and connect to the engine core.

        ConfigurationError ends the server: settings or a token file are wrong. A change in vLLM only disables the
        routes.
        """
        config = getattr(engine_client, "vllm_config", None)
        guard = Guard("adapters", Counters())
        attempt(guard, lambda: self._serve_adapters(state, config, guard))
        self.routes.no_adapters = guard.reason
        settings = read_settings(getattr(config, "additional_config", None), os.environ)
        file = settings.routes.admin_token_file if settings is not None else None
        self.routes.token = read_secret(file or _path(os.environ.get(TOKEN_FILE)))
        keys = getattr(args, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
        self.routes.api_keys = tuple(key for key in keys if key)
        scheduler = getattr(config, "scheduler_config", None)
        if settings is None and config is not None and getattr(scheduler, "scheduler_cls", None) != plugin.SCHEDULER:
            return
        guard = Guard("routes", Counters())
        attempt(guard, lambda: self._connect(engine_client, guard, scheduler))
        if not guard.on:
            self.routes.disable(guard)
        self.routes.metrics.ignored = 0 if settings is None else len(settings.ignored)

    def _serve_adapters(self, state: Any, config: Any, guard: Guard) -> None:
        """state: of the application, which has vLLM's list of models. config: vLLM's VllmConfig."""
        from plumage_engine.vllm.compat import adapters

        servers = getattr(getattr(config, "parallel_config", None), "_api_process_count", 1)
        if servers > 1:
            # Each has a list and ids of its own, so vLLM refuses VLLM_ALLOW_RUNTIME_LORA_UPDATING there too.
            guard.refuse([f"vLLM has {servers} API servers, and loads adapters with --api-server-count=1 only"])
            return
        models = getattr(state, "openai_serving_models", None)
        if reasons := adapters.problems(models):
            guard.refuse(reasons)
            return
        self.routes.adapters = AdapterLoader(VllmAdapters(models, adapters))

    def _connect(self, engine_client: Any, guard: Guard, scheduler: Any) -> None:
        """scheduler: vLLM's SchedulerConfig."""
        from plumage_engine.vllm.compat import entrypoints

        _register(self.routes.metrics, entrypoints)
        if reasons := entrypoints.problems(engine_client):
            guard.refuse(reasons)
            return
        core = engine_client.engine_core

        async def ask(name: str, body: bytes) -> tuple[int, bytes]:
            try:
                status, content = await core.call_utility_async("plumage", name, body)
            except Exception as error:
                if entrypoints.lacks(error, "plumage"):
                    self.routes.disable(plugin.absent(scheduler))
                raise
            return status, bytes(content)

        self.routes.ask = ask


def _register(metrics: PluginMetrics, entrypoints: Any) -> None:
    registry = entrypoints.get_prometheus_registry()
    if entrypoints.registry_is_shared(registry):
        registry.register(metrics)
    else:
        _log.warning("plumage: with several API servers /metrics lacks our counters; %sstats has them", PREFIX)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
