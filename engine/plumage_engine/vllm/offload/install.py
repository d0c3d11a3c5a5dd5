"""Tie the host tier to a live scheduler: its settings, and promotion."""

from __future__ import annotations

from typing import Any

from plumage_engine.policies import HostTierConfig
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.offload.host_tier.chunk_hotness import Prior
from plumage_engine.vllm.offload.host_tier.store_manager import SelectiveManager

__all__ = ["install"]


def install(
    scheduler: Any,
    settings: HostTierConfig,
    guard: Guard,
    counters: Counters,
    *,
    prior: Prior | None = None,
    seed: int = 0,
) -> SelectiveManager | None:
    """Configure the tier of `scheduler`, just made, and switch promotion on. None where it has none of ours.

    guard: promotion's, off where that fails, which leaves the tier as it is; the manager has its own. prior: pool-wide
    hotness; where it knows nothing local uses count.
    """
    connector = getattr(scheduler.connector, "connector_scheduler", None)
    tiers: Any = getattr(connector, "manager", None)
    manager: SelectiveManager | None = getattr(tiers, "memory", tiers)
    if not isinstance(manager, SelectiveManager):
        return None
    manager.configure(settings, counters, prior=prior, seed=seed)
    if tiers is not manager:
        tiers.attach(counters, scheduler.vllm_config.parallel_config)
    if settings.promotion != "Off":
        attempt(guard, lambda: _promote(scheduler, connector, manager, guard, counters))
    return manager


def _promote(scheduler: Any, connector: Any, manager: SelectiveManager, guard: Guard, counters: Counters) -> None:
    if not manager.guard.on:
        guard.refuse(["selective admission is off"])
        return
    from plumage_engine.vllm.offload.promotion.connector_hooks import promote

    promote(scheduler, connector, manager, guard, counters)
