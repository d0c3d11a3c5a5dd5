"""The settings of the plugin in vLLM, which operator and local mode write into an environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from plumage.defaults import BATCH_LIMIT, SEED
from plumage.settings.engine_policies import EvictionConfig, FeatherConfig, HostTierConfig
from plumage.version_skew import Settings

__all__ = ["PluginSettings", "RoutesConfig"]


class RoutesConfig(Settings):
    """The routes under /v1/plumage.

    admin_token_file: holds their bearer token; without one only callers on this machine are served.
    record_blocks: cached blocks that a snapshot can list (about 550 bytes each).
    """

    admin_token_file: Path | None = None
    record_blocks: int = Field(500_000, ge=1, le=50_000_000)


class PluginSettings(Settings):
    """The plugin's settings in vLLM.

    feather: None leaves vLLM's own queue. Its chunk_tokens are rounded to whole blocks, at least one; its order_batch
    sorts the running batch inside the worker.
    eviction: None leaves vLLM's own order, LRU.
    host_tier: how the offloading spec admits and promotes; `--kv-transfer-config` switches the tier itself on.
    batch_limit: "Adaptive" lowers the number of running requests while preemptions show pressure.
    routes: the routes that agents call.
    """

    feather: FeatherConfig | None = FeatherConfig()
    eviction: EvictionConfig | None = EvictionConfig()
    host_tier: HostTierConfig = HostTierConfig()
    batch_limit: Literal["Adaptive", "Static"] = BATCH_LIMIT
    seed: int = SEED
    routes: RoutesConfig = RoutesConfig()
