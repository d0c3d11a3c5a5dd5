"""The configuration of real vLLM for a pool: its flags, and the settings of Plumage's plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.cache import HostMemorySpec
from plumage.api.v1alpha1.engine import VLLM_PLUGIN
from plumage.api.v1alpha1.model import MOST_ADAPTERS, ModelSpec
from plumage.cluster import child_name
from plumage.settings import policies
from plumage.settings.addresses import EngineSockets
from plumage.settings.plugin_config import PluginSettings, RoutesConfig
from plumage.settings.router_config import traces_url
from plumage.settings.secrets import EngineTlsFiles

__all__ = [
    "ROUTES",
    "VLLM_READY_SECONDS",
    "adapter_flags",
    "events_config",
    "host_tier_config",
    "plugin_settings",
    "tls_environment",
    "tracing_environment",
    "vllm_flags",
]

VLLM_READY_SECONDS = 900.0
"""Loading and compiling a large model takes minutes."""
ROUTES = VLLM_PLUGIN
"""The entry of VLLM_PLUGINS that adds the routes under /v1/plumage."""

# Probes, routers and the agent request these several times a second. In the log they would hide errors.
_NOT_LOGGED = ("/health", "/metrics", *(f"/v1/plumage/{name}" for name in ("feather", "promote", "stats", "tables")))
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM 0.32 accepts (`config/lora.py`)
_CERT_REQUIRED = 2  # of Python's ssl module
_BLOCK_TOKENS = 16  # vLLM's default on GPUs; the paper's formula needs the size of a block


def vllm_flags(
    pool: InferencePool,
    sockets: EngineSockets,
    *,
    model: str,
    host: str,
    port: int,
    shutdown_seconds: int,
    adapters: Mapping[str, str] | None = None,
) -> list[str]:
    """The flags of vLLM's API server, with the manifest's `args` last.

    model: the folder or repository that vLLM loads. adapters: see `adapter_flags`.
    shutdown_seconds: how long requests may continue after SIGTERM.
    """
    return [
        f"--model={model}",
        f"--served-model-name={pool.spec.model.served_name}",
        f"--host={host}",
        f"--port={port}",
        f"--kv-events-config={json.dumps(events_config(sockets))}",
        "--enable-prompt-tokens-details",
        f"--shutdown-timeout={shutdown_seconds}",
        f"--disable-access-log-for-endpoints={','.join(_NOT_LOGGED)}",
        *_tls_flags(sockets.tls),
        *_model_flags(pool, adapters),
        *pool.spec.engine.args,
    ]


def _tls_flags(files: EngineTlsFiles | None) -> list[str]:
    if files is None:
        return []
    flags = [f"--ssl-certfile={files.server.certificate}", f"--ssl-keyfile={files.server.key}", "--enable-ssl-refresh"]
    if files.client is not None:
        flags += [f"--ssl-ca-certs={files.client.authority}", f"--ssl-cert-reqs={_CERT_REQUIRED}"]
    return flags


def tls_environment(files: EngineTlsFiles | None) -> dict[str, str]:
    """vLLM watches the files by inotify, which follows a link once. The kubelet replaces a mounted Secret by a link, so
    vLLM would miss each renewal but the first. By polling it sees all (seen with watchfiles 1.3)."""
    return {} if files is None else {"WATCHFILES_FORCE_POLLING": "true"}


def _model_flags(pool: InferencePool, adapters: Mapping[str, str] | None) -> list[str]:
    flags = []
    if pool.spec.model.revision is not None and pool.spec.model.uri.startswith("hf://"):
        flags.append(f"--revision={pool.spec.model.revision}")
    if pool.spec.engine.tensor_parallel_size > 1:
        flags.append(f"--tensor-parallel-size={pool.spec.engine.tensor_parallel_size}")
    if pool.spec.model.max_length is not None:
        flags.append(f"--max-model-len={pool.spec.model.max_length}")
    if pool.spec.tracing is not None:
        flags.append(f"--otlp-traces-endpoint={traces_url(pool.spec.tracing.endpoint)}")
    if pool.spec.model.adapters:
        flags += adapter_flags(pool.spec.model, adapters)
    if (tier := host_tier_config(pool)) is not None:
        flags.append(f"--kv-transfer-config={json.dumps(tier)}")
    return flags


def adapter_flags(model: ModelSpec, adapters: Mapping[str, str] | None = None) -> list[str]:
    """The flags for LoRA. vLLM's own defaults are one adapter at a time, no other one in host memory, and rank 16.

    adapters: the folder of each adapter that vLLM loads at its start, by name. None: an agent loads them, and no flag
    depends on their number. Room for more adapters in host memory takes none until they are loaded.
    """
    rank = next(rank for rank in _LORA_RANKS if rank >= model.adapter_max_rank)
    slots = model.adapter_slots if adapters is None else min(model.adapter_slots, len(adapters))
    most = MOST_ADAPTERS if adapters is None else len(adapters)
    flags = ["--enable-lora", f"--max-loras={slots}", f"--max-cpu-loras={most}", f"--max-lora-rank={rank}"]
    modules = [f"{name}={path}" for name, path in (adapters or {}).items()]
    return [*flags, *(["--lora-modules", *modules] if modules else [])]


def tracing_environment(pool: InferencePool) -> dict[str, str]:
    """vLLM makes spans only below a sampled one, which is the router's."""
    if pool.spec.tracing is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": child_name(pool.metadata.name, "engine"),
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }


def events_config(sockets: EngineSockets) -> dict[str, Any]:
    """Returns the value of `--kv-events-config`."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": sockets.events,
        "replay_endpoint": sockets.replay,
    }


def host_tier_config(pool: InferencePool) -> dict[str, Any] | None:
    """Returns the value of `--kv-transfer-config`; None without a host tier of a known size."""
    memory = pool.spec.engine.host_memory
    if memory is None or memory.capacity is None:
        return None
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTierSpec",
            "spec_module_path": "plumage_engine.vllm.offload.spec",
            "cpu_bytes_to_use": int(memory.capacity),
            **_disk_options(memory),
        },
    }


def _disk_options(memory: HostMemorySpec) -> dict[str, Any]:
    """Options of the disk tier. A fiftieth of the volume is left for the file system's own blocks."""
    disk = memory.disk
    return {} if disk is None else {"disk_path": str(disk.path), "disk_bytes_to_use": int(disk.capacity) * 49 // 50}


def plugin_settings(pool: InferencePool, token: str, seed: int) -> PluginSettings:
    """Returns the settings of the plugin in vLLM. Without one of our policies vLLM keeps its own order."""
    engine = pool.spec.engine
    feather = None if engine.feather.policy == "Fcfs" else policies.feather(engine.feather)
    eviction = None if engine.eviction.policy == "Lru" else policies.eviction(engine.eviction, _BLOCK_TOKENS)
    tier = {} if engine.host_memory is None else {"host_tier": policies.host_tier(engine.host_memory)}
    return PluginSettings(
        feather=feather,
        eviction=eviction,
        batch_limit=engine.batch_limit,
        seed=seed,
        routes=RoutesConfig(admin_token_file=Path(token)),
        **tier,
    )
