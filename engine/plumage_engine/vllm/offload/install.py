"""Ties the host tier to a live scheduler: its settings, the disk and promotion."""

from __future__ import annotations

from typing import Any

from plumage.settings.engine_policies import HostTierConfig
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.offload.host_tier.chunk_hotness import Prior
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager

__all__ = ["install"]


def install(
    scheduler: Any,
    settings: HostTierConfig,
    guard: Guard,
    counters: Counters,
    *,
    prior: Prior | None = None,
    seed: int = 0,
) -> HostTierManager | None:
    """Configure the tier of `scheduler`, which was just made, and switch promotion on. None where it has none of ours.

    guard: promotion's; off where promotion can't be switched on, which leaves the tier as it is. The manager has its
    own.
    prior: hotness that the pool measured; local uses count where it is unknown.
    """
    connector = getattr(scheduler.connector, "connector_scheduler", None)
    tiers: Any = getattr(connector, "manager", None)
    manager: HostTierManager | None = getattr(tiers, "memory", tiers)
    if not isinstance(manager, HostTierManager):
        return None
    manager.configure(settings, counters, prior=prior, seed=seed, device_chunks=_device_chunks(scheduler, manager))
    if tiers is not manager:
        tiers.attach(counters, scheduler.vllm_config.parallel_config)
    if settings.promotion != "Off":
        attempt(guard, lambda: _promote(scheduler, connector, manager, guard, counters))
    return manager


def _device_chunks(scheduler: Any, manager: HostTierManager) -> int:
    """Chunks that fit the device's cache; 0 where this vLLM does not say so, which makes clocks age faster."""
    try:
        tokens = scheduler.kv_cache_manager.block_pool.num_gpu_blocks * scheduler.cache_config.block_size
        return int(tokens // manager.hotness.tokens)
    except (AttributeError, TypeError):
        return 0


def _promote(scheduler: Any, connector: Any, manager: HostTierManager, guard: Guard, counters: Counters) -> None:
    if not manager.guard.on:
        guard.refuse(["selective admission is off"])
        return
    from plumage_engine.vllm.offload.promotion.connector_hooks import promote

    promote(scheduler, connector, manager, guard, counters)
