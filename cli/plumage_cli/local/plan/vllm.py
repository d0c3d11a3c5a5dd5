"""The settings of a real vLLM engine in local mode. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from plumage.api.v1alpha1 import InferencePool
from plumage.models import WITH_WEIGHTS
from plumage.settings.addresses import EngineSockets
from plumage.settings.vllm import ROUTES, plugin_settings, tracing_environment, vllm_flags
from plumage_cli.local.plan.vllm_command import VllmCommand

__all__ = ["VllmInterpreter", "adapter_folders", "needs_weights", "vllm_settings"]

_END_SECONDS = 5  # vLLM's own timeout at its end; the supervisor's is twice as long


@dataclass(frozen=True, slots=True)
class VllmInterpreter:
    """python: path of an interpreter with vLLM and Plumage's plugin.

    cpu: no GPU here. threads: CPU threads per engine.
    """

    python: str
    cpu: bool = True
    threads: int = 1


def needs_weights(pool: InferencePool) -> bool:
    """Whether its model is the built-in one whose weights `plumage up` writes."""
    return pool.spec.engine.runtime == "VLLM" and pool.spec.model.uri.rstrip("/") == WITH_WEIGHTS


def adapter_folders(pool: InferencePool) -> dict[str, str]:
    """Returns the folders by adapter. A simulated engine reads no files, so there the name stands for the folder."""
    if pool.spec.engine.runtime == "Simulator":
        return {adapter.name: adapter.name for adapter in pool.spec.model.adapters}
    return {adapter.name: unquote(urlsplit(adapter.uri).path) for adapter in pool.spec.model.adapters}


def vllm_settings(
    pool: InferencePool,
    vllm: VllmInterpreter,
    sockets: EngineSockets,
    *,
    model_folder: Path,
    index: int,
    port: int,
    host: str,
) -> VllmCommand:
    """Settings of `plumage_cli.local.processes.vllm_child`."""
    flags = vllm_flags(
        pool,
        sockets,
        model=str(model_folder),
        host=host,
        port=port,
        shutdown_seconds=_END_SECONDS,
        adapters=adapter_folders(pool),
    )
    own = len(flags) - len(pool.spec.engine.args)  # the manifest's own arguments stay last: they override ours
    eager = ("--enforce-eager", "--gpu-memory-utilization=0.4") if vllm.cpu else ()
    return {
        "apiKeyFile": sockets.api_key,
        "command": [vllm.python, "-m", "vllm.entrypoints.openai.api_server", *flags[:own], *eager, *flags[own:]],
        "environment": {
            **_platform(vllm),
            "PLUMAGE_VLLM": json.dumps(plugin_settings(pool, sockets.token, index).written()),
            "VLLM_PLUGINS": ROUTES,
            "VLLM_NO_USAGE_STATS": "1",
            **tracing_environment(pool),
            **{variable.name: variable.value or "" for variable in pool.spec.engine.env},
        },
    }


def _platform(vllm: VllmInterpreter) -> dict[str, str]:
    """On a CPU: one GiB of KV cache, and threads that are not bound to cores, which engines would share. Without bound
    threads vLLM needs no worker process: the engine core runs the model, as it does for one GPU."""
    if not vllm.cpu:
        return {}
    threads = {"OMP_NUM_THREADS": str(vllm.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {**threads, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
