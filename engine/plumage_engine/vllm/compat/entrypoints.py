"""vLLM's API server: its metric registry, and the arguments of an endpoint plugin."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.metrics.prometheus import get_prometheus_registry

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = ["LIVE", "SURFACE", "get_prometheus_registry", "lacks", "problems", "registry_is_shared"]

SURFACE: Surface = {AsyncMPClient: ("call_utility_async(method)",)}
LIVE: Live = {AsyncLLM: ("engine_core", "vllm_config")}


def problems(engine_client: Any) -> list[str]:
    """What the routes need and this API server does not have."""
    if not isinstance(engine_client, AsyncLLM):
        return [f"its engine client is a {type(engine_client).__name__}, not vLLM's AsyncLLM"]
    return missing(SURFACE) + missing_live(LIVE, engine_client)


def lacks(error: Exception, method: str) -> bool:
    """Whether a utility call failed because the engine core has no such method.

    vLLM passes on only the text of an exception raised there.
    """
    return f"has no attribute '{method}'" in str(error)


def registry_is_shared(registry: CollectorRegistry) -> bool:
    """Whether /metrics exports this registry: with several API servers vLLM makes a registry for each answer."""
    return registry is get_prometheus_registry()
