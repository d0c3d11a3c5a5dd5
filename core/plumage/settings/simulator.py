"""A pool's manifest → the settings file of a simulated engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.engine import EngineSpec
from plumage.settings import policies
from plumage.settings.addresses import EngineSockets
from plumage.settings.secrets import EngineTlsFiles
from plumage.settings.simulator_config import DeviceConfig, ServerTlsConfig, SimulatorConfig

__all__ = ["STORE_VARIABLE", "simulator_settings"]

STORE_VARIABLE: Final = "VLLM_ENABLE_RESPONSES_API_STORE"
"""vLLM stores responses if this is in its environment; so does the simulator."""


def simulator_settings(
    pool: InferencePool,
    sockets: EngineSockets,
    *,
    model_folder: str,
    host: str,
    port: int,
    seed: int,
    adapters: bool = True,
) -> SimulatorConfig:
    """Returns the settings of `python -m plumage_engine.simulator` on `host`:`port`. adapters: it serves the adapters
    from its start; else its agent loads them."""
    engine, simulator = pool.spec.engine, pool.spec.engine.simulator
    device = simulator.device
    tier = {} if engine.host_memory is None else {"host_tier": policies.host_tier(engine.host_memory)}
    return SimulatorConfig(
        model=pool.spec.model.served_name,
        adapters=tuple(adapter.name for adapter in pool.spec.model.adapters) if adapters else (),
        adapter_slots=pool.spec.model.adapter_slots,
        model_folder=model_folder,
        host=host,
        port=port,
        tls=_tls(sockets.tls),
        events_endpoint=sockets.events,
        replay_endpoint=sockets.replay,
        admin_token_file=Path(sockets.token),
        api_key_file=Path(sockets.api_key),
        seed=seed,
        device=DeviceConfig(preset=device.preset.lower(), time_scale=device.time_scale_percent / 100),
        block_size=simulator.block_size,
        cache_blocks=simulator.cache_blocks,
        host_blocks=_host_blocks(engine),
        max_num_seqs=simulator.max_num_seqs,
        max_batched_tokens=simulator.max_batched_tokens,
        max_model_len=pool.spec.model.max_length,
        batch_limit=engine.batch_limit,
        eviction=policies.eviction(engine.eviction, simulator.block_size),
        feather=policies.feather(engine.feather),
        store_responses=any(one.name == STORE_VARIABLE and (one.value or "0") != "0" for one in engine.env),
        **tier,
    )


def _tls(files: EngineTlsFiles | None) -> ServerTlsConfig | None:
    if files is None:
        return None
    return ServerTlsConfig(
        certificate_file=Path(files.server.certificate),
        key_file=Path(files.server.key),
        client_ca_file=None if files.client is None else Path(files.client.authority),
    )


def _host_blocks(engine: EngineSpec) -> int:
    """HotPrefix's default: as much room in host memory as on the device."""
    if engine.host_memory is None:
        return 0
    simulator = engine.simulator
    return simulator.cache_blocks if simulator.host_blocks is None else simulator.host_blocks
