"""The simulated engine that a settings file describes."""

from __future__ import annotations

from plumage.options import refuse_given
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.engine.device import make_device
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["engine_settings"]


def engine_settings(config: SimulatorConfig) -> EngineSettings:
    """The engine that the file describes. ConfigurationError for settings that contradict each other."""
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
