"""The configuration file of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.settings.meeting import Meeting

__all__ = ["agent_settings"]


def agent_settings(
    pool: InferencePool,
    meeting: Meeting,
    *,
    model_folder: str,
    engine_url: str,
    directory_url: str,
    host: str,
    port: int,
    peers: Mapping[str, Any],
) -> dict[str, Any]:
    """For `python -m plumage_engine.agent`, less the replica's id and the share of the directory's memory.

    peers: where a new replica finds those that it is warmed by, in the words of the agent's `warmup` section.
    """
    warmup = pool.spec.directory.warmup
    return {
        "pool": pool.metadata.name,
        "model": pool.spec.model.served_name,
        "modelFolder": model_folder,
        "engineUrl": engine_url,
        "engineTokenFile": meeting.token,
        "engineApiKeyFile": meeting.api_key,
        "eventsEndpoint": meeting.events,
        "replayEndpoint": meeting.replay,
        "directoryUrl": directory_url,
        "listen": {"host": host, "port": port},
        "tokenFile": meeting.token,
        "warmup": {
            "enabled": warmup.enabled,
            **peers,
            "maxTokens": warmup.max_tokens,
            "timeoutSeconds": warmup.timeout_seconds,
        },
    }
