"""The configuration file of a simulated engine."""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.engine import EngineSpec
from plumage.settings import policies
from plumage.settings.engine_sockets import EngineSockets

__all__ = ["simulator_settings"]


def simulator_settings(
    pool: InferencePool, sockets: EngineSockets, *, model_folder: str, host: str, port: int, seed: int
) -> dict[str, Any]:
    """For `python -m plumage_engine.simulator`, listening on `host`:`port`."""
    engine, simulator = pool.spec.engine, pool.spec.engine.simulator
    settings: dict[str, Any] = {
        "model": pool.spec.model.served_name,
        "adapters": [adapter.name for adapter in pool.spec.model.adapters],
        "modelFolder": model_folder,
        "host": host,
        "port": port,
        "eventsEndpoint": sockets.events,
        "replayEndpoint": sockets.replay,
        "adminTokenFile": sockets.token,
        "apiKeyFile": sockets.api_key,
        "seed": seed,
        "device": {
            "preset": simulator.device.preset.lower(),
            "timeScale": simulator.device.time_scale_percent / 100,
        },
        "blockSize": simulator.block_size,
        "cacheBlocks": simulator.cache_blocks,
        "hostBlocks": _host_blocks(engine),
        "maxNumSeqs": simulator.max_num_seqs,
        "maxBatchedTokens": simulator.max_batched_tokens,
        "batchLimit": engine.batch_limit,
        "eviction": policies.eviction(engine.eviction, simulator.block_size),
        "feather": policies.feather(engine.feather),
    }
    if engine.host_memory is not None:
        settings["hostTier"] = policies.host_tier(engine.host_memory)
    if pool.spec.model.max_length is not None:
        settings["maxModelLen"] = pool.spec.model.max_length
    return settings


def _host_blocks(engine: EngineSpec) -> int:
    """HotPrefix's default: as much room in host memory as on the device."""
    if engine.host_memory is None:
        return 0
    simulator = engine.simulator
    return simulator.cache_blocks if simulator.host_blocks is None else simulator.host_blocks
