"""The configuration file of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.settings.engine_sockets import EngineSockets

__all__ = ["agent_settings"]


def agent_settings(
    pool: InferencePool,
    sockets: EngineSockets,
    *,
    model_folder: str,
    engine_url: str,
    directory_url: str,
    host: str,
    port: int,
    peers: Mapping[str, Any],
) -> dict[str, Any]:
    """For `python -m plumage_engine.agent`, without the replica's id and the share of the directory's memory.

    peers: the fields of the agent's `warmup` section that name the peers of a new replica.
    """
    warmup = pool.spec.directory.warmup
    return {
        "pool": pool.metadata.name,
        "model": pool.spec.model.served_name,
        "modelFolder": model_folder,
        "engineUrl": engine_url,
        "engineTokenFile": sockets.token,
        "engineApiKeyFile": sockets.api_key,
        "eventsEndpoint": sockets.events,
        "replayEndpoint": sockets.replay,
        "directoryUrl": directory_url,
        "listen": {"host": host, "port": port},
        "tokenFile": sockets.token,
        "warmup": {
            "enabled": warmup.enabled,
            **peers,
            "maxTokens": warmup.max_tokens,
            "timeoutSeconds": warmup.timeout_seconds,
        },
    }
