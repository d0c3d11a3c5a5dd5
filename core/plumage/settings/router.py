"""The configuration file of a pool's router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.quantity import Quantity
from plumage.api.v1alpha1.router import RouterLimits
from plumage.settings import policies
from plumage.settings.secrets import SecretFiles

__all__ = ["ROUTER_MEMORY", "body_memory", "router_settings"]

ROUTER_MEMORY = "256Mi"
"""The memory request of a router without one in the manifest."""


def router_settings(
    pool: InferencePool,
    *,
    model_folder: str,
    directory_url: str,
    host: str,
    port: int,
    membership: Mapping[str, Any],
    auth: Mapping[str, Any],
    secrets: SecretFiles | None,
) -> dict[str, Any]:
    """For `python -m plumage_router`.

    membership: the source of the replicas. auth: the files with the keys of clients and of the admin.
    secrets: the files with the pool's own secrets; None if engines need no key and there are no tenants."""
    spec, model = pool.spec.router, pool.spec.model
    return {
        "listen": {"host": host, "port": port},
        "pool": pool.metadata.name,
        "model": {
            "name": model.served_name,
            "modelFolder": model_folder,
            "adapters": [adapter.name for adapter in model.adapters],
            "aliases": list(model.aliases),
            "maxLength": model.max_length,
            **_cache(pool),
        },
        **membership,
        "directoryUrl": directory_url,
        "policy": {"name": spec.policy, "lbgr": policies.lbgr(spec.policy, spec.lbgr)},
        "auth": dict(auth),
        **({} if secrets is None else _files(secrets)),
        "limits": {
            "maxBodyBytes": int(spec.limits.max_body_bytes),
            "maxBufferedBytes": body_memory(spec.limits, spec.resources),
            "maxConnections": spec.limits.max_connections,
            "maxInFlight": spec.limits.max_in_flight,
        },
        "timeouts": {
            "connect": spec.timeouts.connect_seconds,
            "firstByte": spec.timeouts.first_byte_seconds,
            "idle": spec.timeouts.idle_seconds,
            "pendingOwner": spec.lbgr.pending_owner_seconds,
            "drain": pool.spec.rollout.drain_timeout_seconds,
        },
        "accessLog": spec.access_log,
        "allowedRequestFields": list(spec.allowed_request_fields),
        "seed": pool.spec.engine.simulator.seed,
    }


def body_memory(limits: RouterLimits, resources: Resources) -> int:
    """Bytes of request bodies that one router may hold: a quarter of its memory limit, else of its memory request.

    A body is in memory twice while it waits for an engine, and reading one takes a few times its size."""
    if limits.body_memory is not None:
        return int(limits.body_memory)
    memory = resources.limits.get("memory") or resources.requests.get("memory") or Quantity(ROUTER_MEMORY)
    return max(int(memory) // 4, 4 * int(limits.max_body_bytes))


def _cache(pool: InferencePool) -> dict[str, int]:
    """The size of an engine's KV cache. For vLLM it is unknown before the engine runs."""
    if pool.spec.engine.runtime == "VLLM":
        return {}
    simulator = pool.spec.engine.simulator
    return {"cacheTokens": simulator.cache_blocks * simulator.block_size}


def _files(secrets: SecretFiles) -> dict[str, str]:
    return {
        "engineApiKeyFile": secrets.engine_key,
        "previousEngineApiKeyFile": secrets.previous_engine_key,
        "saltKeyFile": secrets.salt_key,
    }
