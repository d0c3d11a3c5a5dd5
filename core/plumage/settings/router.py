"""The configuration file of a pool's router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.settings import policies

__all__ = ["router_settings"]


def router_settings(
    pool: InferencePool,
    *,
    model_folder: str,
    directory_url: str,
    host: str,
    port: int,
    membership: Mapping[str, Any],
    auth: Mapping[str, Any],
) -> dict[str, Any]:
    """For `python -m plumage_router`. membership: where it reads who exists; auth: the files with keys."""
    spec, model, simulator = pool.spec.router, pool.spec.model, pool.spec.engine.simulator
    return {
        "listen": {"host": host, "port": port},
        "pool": pool.metadata.name,
        "model": {
            "name": model.served_name,
            "modelFolder": model_folder,
            "adapters": [adapter.name for adapter in model.adapters],
            "aliases": list(model.aliases),
            "maxLength": model.max_length,
            "cacheTokens": simulator.cache_blocks * simulator.block_size,
        },
        **membership,
        "directoryUrl": directory_url,
        "policy": {"name": spec.policy, "lbgr": policies.lbgr(spec.policy, spec.lbgr)},
        "auth": dict(auth),
        "limits": {
            "maxBodyBytes": int(spec.limits.max_body_bytes),
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
        "seed": simulator.seed,
    }
