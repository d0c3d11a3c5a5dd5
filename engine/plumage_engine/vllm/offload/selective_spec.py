"""The offloading spec that makes our host memory, and the disk below it, where this vLLM has all they need.

It works beside vLLM's own scheduler too: then without promotion and without the disk.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from plumage.errors import ConfigurationError
from plumage_engine.vllm.compat.kv_offload import (
    CanonicalKVCaches,
    CPUOffloadingSpec,
    OffloadingConfig,
    OffloadingKVEventsConfig,
    OffloadingManager,
    OffloadingWorker,
    copies_itself,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.offload import fallback
from plumage_engine.vllm.offload.disk_tier.options import read_disk
from plumage_engine.vllm.offload.host_tier.copy_worker import TorchWorker
from plumage_engine.vllm.offload.host_tier.memory_check import check_host_memory, machine_memory
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager
from plumage_engine.vllm.settings import read_settings

__all__ = ["SelectiveSpec"]

_OURS = {"store_threshold": "hostTier.minFrequency", "eviction_policy": "hostTier.admission and hostTier.priority"}
"""Options of vLLM's own spec that the plugin replaces, and the setting that does."""


class SelectiveSpec(CPUOffloadingSpec):
    """Host memory with selective admission. vLLM's worker copies, or torch where there is no GPU.

    disk: options of the disk; None for no disk, or where this vLLM's tiers are incompatible (`disk_guard`). Modules
    that need vLLM's tiers are imported for a disk only.
    """

    kv_events_config: OffloadingKVEventsConfig
    _manager: OffloadingManager | None
    _worker: OffloadingWorker | None

    def __init__(self, config: OffloadingConfig) -> None:
        for option, ours in _OURS.items():
            if option in config.extra_config:
                raise ConfigurationError(f"host tier: {option} has no effect here; set the plugin's {ours}")
        self.disk_guard = Guard("disk", Counters())
        self.disk = read_disk(config.extra_config)
        if self.disk is not None and attempt(self.disk_guard, _disk_parts) is None:
            self.disk = None
        super().__init__(config)
        check_host_memory(
            int(self.extra_config["cpu_bytes_to_use"]), machine_memory(), shared=self._uses_shared_region()
        )
        # Agents can't use events of host memory that lack token ids.
        described = bool(self.extra_config.get("self_describing_kv_events", True))
        self.kv_events_config = replace(self.kv_events_config, self_describing_kv_events=described)

    def get_manager(self) -> OffloadingManager:
        """The manager of this engine. `install` gives it the plugin's settings; until then the environment's apply.

        vLLM's own, or one that stores nothing, where this vLLM makes its manager in another way.
        """
        if self._manager is None:
            stock, second = super().get_manager, Guard("hostTier", Counters())
            made = attempt(fallback.GUARD, self._make_manager) or attempt(second, stock)
            self._manager = made or fallback.IdleManager()
        return self._manager

    def _make_manager(self) -> OffloadingManager:
        tokens = min(self.tokens_per_block) * self.blocks_per_chunk
        manager: OffloadingManager
        memory: HostTierManager
        if self.disk is None:
            events, size = self.kv_events_config.enable_kv_cache_events, self.cpu_page_size_per_worker
            memory = HostTierManager(self.num_chunks, tokens, size, events=events)
            memory.refused |= {} if self.disk_guard.on else {"disk": self.disk_guard}
            manager = memory
        else:
            tiers = _disk_parts().make_tiers(self, self.disk, tokens)
            manager, memory = tiers, tiers.memory
        settings = read_settings(None, os.environ)
        if settings is not None:
            memory.configure(settings.host_tier, Counters(), seed=settings.seed)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """vLLM's worker, or ours on a platform where vLLM's does not run."""
        if self._worker is None and not copies_itself():
            region = None
            if self.disk is not None:
                region = _disk_parts().workers_region(self)
            self._worker = TorchWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        return super().get_worker(kv_caches)

    def create_worker(self, kv_caches: CanonicalKVCaches) -> Any:
        """vLLM's worker; with a disk, over memory that the scheduler maps too."""
        if self.disk is None:
            return super().create_worker(kv_caches)
        return _disk_parts().make_worker(self, kv_caches)

    def _uses_shared_region(self) -> bool:
        return self.disk is not None or bool(super()._uses_shared_region())

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """vLLM's own definitions for host memory and for the tier below it."""
        if read_disk(extra_config) is None or attempt(Guard("disk", Counters()), _disk_parts) is None:
            return dict(super().build_metric_definitions(extra_config))
        from plumage_engine.vllm.compat.kv_tiering import TieringOffloadingSpec

        return dict(TieringOffloadingSpec.build_metric_definitions(extra_config))


def _disk_parts() -> Any:
    """The module `disk_tier.setup`, which needs vLLM's tiers. ImportError where this vLLM lacks one of their names."""
    from plumage_engine.vllm.offload.disk_tier import setup

    return setup
