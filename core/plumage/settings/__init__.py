"""A pool's manifest → the configuration of its processes: the files of engine, agent and router, and vLLM's flags.

Local mode writes them into the pool's folder, the operator into ConfigMaps. Both use this package, so that a pool is
the same on one machine and in a cluster. Paths, ports and addresses differ, so they are arguments."""

from __future__ import annotations

from plumage.settings.agent import agent_settings
from plumage.settings.effect import without_effect
from plumage.settings.engine_sockets import EngineSockets
from plumage.settings.router import ROUTER_MEMORY, body_memory, router_settings
from plumage.settings.secrets import ENGINE_KEY, PREVIOUS_ENGINE_KEY, SALT_KEY, SecretFiles
from plumage.settings.simulator import simulator_settings
from plumage.settings.vllm import (
    VLLM_READY_SECONDS,
    events_config,
    host_tier_config,
    plugin_settings,
    vllm_flags,
)

__all__ = [
    "ENGINE_KEY",
    "PREVIOUS_ENGINE_KEY",
    "ROUTER_MEMORY",
    "SALT_KEY",
    "VLLM_READY_SECONDS",
    "EngineSockets",
    "SecretFiles",
    "agent_settings",
    "body_memory",
    "events_config",
    "host_tier_config",
    "plugin_settings",
    "router_settings",
    "simulator_settings",
    "vllm_flags",
    "without_effect",
]
