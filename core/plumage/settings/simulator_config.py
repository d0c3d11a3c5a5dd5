"""The settings file of a simulated engine, which operator and local mode write.

Every bound of the server is here: prompt length, body size, requests in flight, events kept for replay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from plumage import defaults
from plumage.loopback import is_loopback
from plumage.settings.addresses import EventEndpoint
from plumage.settings.engine_policies import EvictionConfig, FeatherConfig, HostTierConfig
from plumage.version_skew import Settings

__all__ = ["DeviceConfig", "ServerTlsConfig", "SimulatorConfig"]


class DeviceConfig(Settings):
    """preset: see `plumage_engine.simulator.engine.device`. time_scale: 0.1 runs ten times faster than the model says.
    overrides: the device's own fields by their names there."""

    preset: str = defaults.DEVICE.lower()
    time_scale: float = Field(defaults.TIME_SCALE_PERCENT / 100, gt=0, le=1000)
    overrides: dict[str, float] = Field({})


class ServerTlsConfig(Settings):
    """PEM files, which are read again when they change, as vLLM's with --enable-ssl-refresh.

    client_ca_file: clients need a certificate of these authorities. None: engines ask for none.
    """

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None


class SimulatorConfig(Settings):
    """One engine.

    model: the name it serves. model_folder: a folder, or builtin://NAME, whose
    path depends on the image. adapters: LoRA names it serves too. adapter_slots: how many of them it computes with at
    a time.
    events_endpoint, replay_endpoint: `ipc://…` for the KV events, in a folder that only engine and agent can enter,
    because events contain prompts.
    api_key_file: the bearer key of /v1. admin_token_file: the bearer token of /v1/plumage; without it the server must
    listen on a loopback address.
    answer_tokens: mean length of an answer that nothing else ends. enable_force_include_usage: vLLM's flag, usage in
    every event of every stream. store_responses: as vLLM with VLLM_ENABLE_RESPONSES_API_STORE=1.
    dev_mode: vLLM's VLLM_SERVER_DEV_MODE, which serves `POST /reset_prefix_cache` without a token.
    """

    model: str = Field(min_length=1)
    adapters: tuple[str, ...] = ()
    adapter_slots: int = Field(defaults.ADAPTER_SLOTS, ge=1)
    model_folder: str = Field(min_length=1)
    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    tls: ServerTlsConfig | None = Field(None, description="None: plain HTTP")
    events_endpoint: EventEndpoint | None = None
    replay_endpoint: EventEndpoint | None = None
    events_topic: str = ""
    events_kept: int = Field(10_000, ge=1, le=1_000_000)
    api_key_file: Path | None = None
    admin_token_file: Path | None = None
    seed: int = defaults.SEED
    device: DeviceConfig = DeviceConfig()
    block_size: int = Field(defaults.BLOCK_SIZE, ge=1, le=1024)
    cache_blocks: int = Field(defaults.CACHE_BLOCKS, ge=1, le=10_000_000)
    host_blocks: int = Field(0, ge=0, le=10_000_000)
    max_num_seqs: int = Field(defaults.MAX_NUM_SEQS, ge=1, le=100_000)
    max_batched_tokens: int = Field(defaults.MAX_BATCHED_TOKENS, ge=2, le=1_000_000)
    batch_limit: Literal["Adaptive", "Static"] = defaults.BATCH_LIMIT
    max_model_len: int | None = Field(None, ge=2)
    eviction: EvictionConfig = EvictionConfig()
    feather: FeatherConfig = FeatherConfig()
    host_tier: HostTierConfig = HostTierConfig()
    answer_tokens: int = Field(200, ge=1, le=1_000_000)
    max_in_flight: int = Field(4096, ge=1)
    max_body_bytes: int = Field(16 * 2**20, ge=1024)
    enable_force_include_usage: bool = False
    dev_mode: bool = False
    store_responses: bool = False
    shutdown_seconds: float = Field(10.0, ge=0, le=3600)

    @model_validator(mode="after")
    def _check(self) -> SimulatorConfig:
        if self.replay_endpoint is not None and self.events_endpoint is None:
            raise ValueError("replayEndpoint needs eventsEndpoint: there is nothing to replay without events")
        if self.admin_token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from outside: set adminTokenFile, or listen on 127.0.0.1"
            )
        return self
