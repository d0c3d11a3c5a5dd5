"""The settings of a simulated engine: sizes, policies and device. `engine_settings` makes them from a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumage import defaults
from plumage.errors import ConfigurationError
from plumage.options import refuse_given
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.engine.device import GPU, Device, make_device

__all__ = ["EngineSettings", "engine_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. A setting that a manifest chooses has no default here; `simulator_settings` sets it.

    block_size: tokens a KV block. cache_blocks: the device's KV cache. host_blocks: the host tier, 0 for none.
    max_num_seqs: running requests at most. adapter_slots: LoRA adapters that they may have. max_batched_tokens: tokens
    a step at most (a longer prompt is prefilled in chunks). queue, eviction: policy names of `plumage.batching` and
    `plumage.eviction`, with their options. chunk_blocks: blocks a chunk of the batching policy's hash vector.
    order_batch: sort the running batch by prefix. batch_limit: "Static", max_num_seqs alone, or "Adaptive", less of
    them under pressure (`plumage.batching.limit`).
    report_tokens: list the requests with a new token in each `StepReport`. It costs O(batch) a step; servers need it.
    """

    block_size: int
    cache_blocks: int
    host_blocks: int = 0
    max_num_seqs: int
    adapter_slots: int = defaults.ADAPTER_SLOTS
    max_batched_tokens: int = defaults.MAX_BATCHED_TOKENS
    queue: str
    queue_options: Mapping[str, Any] = field(default_factory=dict)
    eviction: str
    eviction_options: Mapping[str, Any] = field(default_factory=dict)
    tier_options: Mapping[str, Any] = field(default_factory=dict)
    chunk_blocks: int = defaults.CHUNK_TOKENS // defaults.BLOCK_SIZE
    order_batch: bool = defaults.ORDER_BATCH
    batch_limit: str
    report_tokens: bool = False
    device: Device = GPU

    def __post_init__(self) -> None:
        refuse_given(f"eviction policy {self.eviction}", self.eviction_options, ("name", "capacity", "rng"))
        refuse_given(f"batching policy {self.queue}", self.queue_options, ("policy", "rng"))
        for name in (
            "block_size",
            "cache_blocks",
            "max_num_seqs",
            "max_batched_tokens",
            "chunk_blocks",
            "adapter_slots",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_limit not in ("Static", "Adaptive"):
            raise ConfigurationError(f"batch_limit must be Static or Adaptive, got {self.batch_limit!r}")
        if self.host_blocks < 0:
            raise ConfigurationError(f"host_blocks must not be negative, got {self.host_blocks}")
        if self.max_batched_tokens <= self.max_num_seqs:
            raise ConfigurationError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be above max_num_seqs ({self.max_num_seqs}): "
                "each running request decodes one token a step, and prompts need what is left"
            )


def engine_settings(config: SimulatorConfig) -> EngineSettings:
    """The settings that the file describes. ConfigurationError for settings that contradict each other."""
    refuse_given(f"device {config.device.preset}", config.device.overrides, ("preset", "time_scale"))
    return EngineSettings(
        block_size=config.block_size,
        cache_blocks=config.cache_blocks,
        host_blocks=config.host_blocks,
        max_num_seqs=config.max_num_seqs,
        adapter_slots=config.adapter_slots,
        max_batched_tokens=config.max_batched_tokens,
        queue=config.feather.policy,
        queue_options={"max_wait": config.feather.max_wait_seconds, **config.feather.options},
        eviction=config.eviction.policy,
        eviction_options=config.eviction.options,
        tier_options=config.host_tier.model_dump(exclude={"promotion_bytes", "promotion_lookahead"}),  # vLLM's
        chunk_blocks=max(1, config.feather.chunk_tokens // config.block_size),
        order_batch=config.feather.order_batch,
        batch_limit=config.batch_limit,
        report_tokens=True,
        device=make_device(config.device.preset, time_scale=config.device.time_scale, **config.device.overrides),
    )
