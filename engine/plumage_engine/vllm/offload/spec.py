"""What vLLM is told to load for its OffloadingConnector:

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
  "spec_name": "HostTierSpec", "spec_module_path": "plumage_engine.vllm.offload.spec", "cpu_bytes_to_use": 8589934592}}'

With `disk_path` and `disk_bytes_to_use` beside them there is a disk below host memory. Settings come with the plugin's
own (`hostTier`). Works beside vLLM's own scheduler too: then without promotion and without the disk.
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
from plumage_engine.vllm.offload.disk_options import read_disk
from plumage_engine.vllm.offload.manager import SelectiveManager
from plumage_engine.vllm.offload.memory import check_host_memory, machine_memory
from plumage_engine.vllm.offload.worker import TorchWorker
from plumage_engine.vllm.settings import read_settings

__all__ = ["HostTierSpec"]

_OURS = {"store_threshold": "hostTier.minFrequency", "eviction_policy": "hostTier.admission and hostTier.priority"}
"""Options of vLLM's own spec that we decide otherwise, and where."""


class HostTierSpec(CPUOffloadingSpec):
    """Host memory with selective admission; the copies are vLLM's own, or torch's where there is no GPU.

    disk: where a tier below lies, None for none. Modules that need vLLM's tiers are imported for one only."""

    kv_events_config: OffloadingKVEventsConfig
    _manager: OffloadingManager | None
    _worker: OffloadingWorker | None

    def __init__(self, config: OffloadingConfig) -> None:
        for option, ours in _OURS.items():
            if option in config.extra_config:
                raise ConfigurationError(f"host tier: {option} has no effect here; say it in the plugin's {ours}")
        self.disk = read_disk(config.extra_config)
        super().__init__(config)
        check_host_memory(
            int(self.extra_config["cpu_bytes_to_use"]), machine_memory(), shared=self._uses_shared_region()
        )
        # Blocks in host memory are of no use to the fleet unless their events tell whose they are.
        told = bool(self.extra_config.get("self_describing_kv_events", True))
        self.kv_events_config = replace(self.kv_events_config, self_describing_kv_events=told)

    def get_manager(self) -> OffloadingManager:
        """The one of this engine. `install` gives it the plugin's settings; until then it has the environment's."""
        if self._manager is None:
            tokens = min(self.tokens_per_block) * self.blocks_per_chunk
            memory: SelectiveManager
            if self.disk is None:
                memory = SelectiveManager(self.num_chunks, tokens, events=self.kv_events_config.enable_kv_cache_events)
                self._manager = memory
            else:
                from plumage_engine.vllm.offload.below import make_tiers

                tiers = make_tiers(self, self.disk, tokens)
                self._manager, memory = tiers, tiers.memory
            settings = read_settings(None, os.environ)
            if settings is not None:
                memory.configure(settings.host_tier, Counters(), seed=settings.seed)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """vLLM's worker, or, on a platform that it refuses, ours."""
        if self._worker is None and not copies_itself():
            region = None
            if self.disk is not None:
                from plumage_engine.vllm.offload.below import workers_region

                region = workers_region(self)
            self._worker = TorchWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        return super().get_worker(kv_caches)

    def create_worker(self, kv_caches: CanonicalKVCaches) -> Any:
        """vLLM's, where it has one; the scheduler maps its memory too, if there is a disk."""
        if self.disk is None:
            return super().create_worker(kv_caches)
        from plumage_engine.vllm.offload.below import make_worker

        return make_worker(self, kv_caches)

    def _uses_shared_region(self) -> bool:
        return self.disk is not None or bool(super()._uses_shared_region())

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """vLLM's own of host memory, and of the tier below it."""
        if read_disk(extra_config) is None:
            return dict(super().build_metric_definitions(extra_config))
        from plumage_engine.vllm.compat.kv_tiering import TieringOffloadingSpec

        return dict(TieringOffloadingSpec.build_metric_definitions(extra_config))
