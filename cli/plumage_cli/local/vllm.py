"""Real vLLM as a pool's engine on this machine: which interpreter has it, and what its processes are told.

vLLM lives in an environment of its own: that of `--vllm-python` or PLUMAGE_VLLM_PYTHON, `.venv-vllm` in this folder, or
the one that runs this. The plan itself is pure; `find_vllm` and `write_tiny_model` look and act.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from plumage.api.v1alpha1 import InferencePool
from plumage.models import WITH_WEIGHTS
from plumage_cli.errors import CliError
from plumage_cli.local import options

__all__ = [
    "PYTHON",
    "READY_SECONDS",
    "VllmSite",
    "find_vllm",
    "mistakes",
    "needs_weights",
    "settings",
    "write_tiny_model",
]

PYTHON = "PLUMAGE_VLLM_PYTHON"
"""Environment variable that names the interpreter with vLLM."""
READY_SECONDS = 900.0
"""A large model is loaded and compiled for minutes."""

_LOOK_SECONDS = 120.0
_WRITE_SECONDS = 300.0
_END_SECONDS = 5  # vLLM's own patience at its end; the supervisor's is twice as long
_ROUTES = "plumage"  # what VLLM_PLUGINS must name for /v1/plumage
_HAS_VLLM = "import importlib.util as u, sys; sys.exit(not (u.find_spec('vllm') and u.find_spec('plumage_engine')))"
_SETUP = "make setup-vllm creates one for CPUs; where vLLM is installed already: pip install plumage-llm[engine] there"


@dataclass(frozen=True, slots=True)
class VllmSite:
    """python: an interpreter that has vLLM and Plumage's plugin. cpu: no GPU here. threads: of the CPU, per engine."""

    python: str
    cpu: bool = True
    threads: int = 1


def find_vllm(option: Path | None, environment: Mapping[str, str], replicas: int) -> VllmSite:
    """CliError says how to get vLLM where no interpreter has it."""
    chosen = str(option or environment.get(PYTHON, ""))
    beside = Path(".venv-vllm/bin/python")
    python = chosen or (str(beside.absolute()) if beside.is_file() else sys.executable)
    try:
        has = subprocess.run([python, "-c", _HAS_VLLM], check=False, timeout=_LOOK_SECONDS, capture_output=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError(f"can't run {python}, which is to run vLLM ({type(error).__name__}): {_SETUP}") from None
    if has.returncode:
        raise CliError(f"engine.runtime VLLM: {python} has no vLLM with Plumage's plugin: {_SETUP}; or set {PYTHON}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return VllmSite(python, cpu=shutil.which("nvidia-smi") is None, threads=max(1, cores // max(1, replicas)))


def needs_weights(pool: InferencePool) -> bool:
    """Whether its model is the built-in one that `plumage up` makes weights for."""
    return pool.spec.engine.runtime == "VLLM" and pool.spec.model.uri.rstrip("/") == WITH_WEIGHTS


def write_tiny_model(site: VllmSite, folder: Path) -> Path:
    """The built-in model with random weights; torch, which writes them, is where vLLM is."""
    command = [site.python, "-m", "plumage_engine.vllm.tiny_model", str(folder)]
    done = subprocess.run(command, check=False, timeout=_WRITE_SECONDS, capture_output=True, text=True)
    if done.returncode:
        raise CliError(f"can't write the tiny model's weights:\n{done.stderr.strip()[-2000:]}")
    return folder


def mistakes(pool: InferencePool) -> list[str]:
    """What one machine's vLLM can't do of the manifest."""
    spec = pool.spec
    found = [
        f"spec.model.adapters: {adapter.name}: uri must be file:// in local mode, got {adapter.uri!r}"
        for adapter in spec.model.adapters
        if not adapter.uri.startswith("file://")
    ]
    if spec.engine.host_memory is not None and spec.engine.host_memory.capacity is None:
        found.append("spec.engine.hostMemory.capacity: must be set with runtime VLLM in local mode")
    if any(variable.value_from is not None for variable in spec.engine.env):
        found.append("spec.engine.env: may not refer to Secrets or ConfigMaps in local mode")
    return found


def settings(
    pool: InferencePool,
    site: VllmSite,
    *,
    model_folder: Path,
    folder: Path,
    token: Path,
    index: int,
    port: int,
    host: str,
) -> dict[str, Any]:
    """Of `plumage_cli.local.vllm_child`: the command, and what its environment has beside this one's."""
    return {
        "port": port,
        "command": [
            site.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            f"--model={model_folder}",
            f"--served-model-name={pool.spec.model.served_name}",
            f"--host={host}",
            f"--port={port}",
            f"--kv-events-config={_events(folder, index)}",
            "--enable-prompt-tokens-details",
            "--enable-force-include-usage",
            f"--shutdown-timeout={_END_SECONDS}",
            *_model_arguments(pool),
            *(("--enforce-eager", "--gpu-memory-utilization=0.4") if site.cpu else ()),
            *pool.spec.engine.args,
        ],
        "environment": {
            **_platform(site),
            "PLUMAGE_VLLM": json.dumps(_plugin(pool, token, index)),
            "VLLM_PLUGINS": _ROUTES,
            "VLLM_NO_USAGE_STATS": "1",
            **{variable.name: variable.value or "" for variable in pool.spec.engine.env},
        },
    }


def _events(folder: Path, index: int) -> str:
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{folder}/events-{index}",
            "replay_endpoint": f"ipc://{folder}/replay-{index}",
        }
    )


def _platform(site: VllmSite) -> dict[str, str]:
    """On a CPU: a cache of one GiB, and threads that no other engine is bound to."""
    if not site.cpu:
        return {}
    threads = {"OMP_NUM_THREADS": str(site.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {**threads, "VLLM_CPU_KVCACHE_SPACE": "1"}


def _model_arguments(pool: InferencePool) -> list[str]:
    spec, arguments = pool.spec, []
    if spec.model.max_length is not None:
        arguments.append(f"--max-model-len={spec.model.max_length}")
    if spec.model.adapters:
        paths = {adapter.name: unquote(urlsplit(adapter.uri).path) for adapter in spec.model.adapters}
        arguments += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in paths.items())]
    if spec.engine.host_memory is not None and spec.engine.host_memory.capacity is not None:
        tier = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "HostTierSpec",
                "spec_module_path": "plumage_engine.vllm.offload.spec",
                "cpu_bytes_to_use": int(spec.engine.host_memory.capacity.value),
            },
        }
        arguments.append(f"--kv-transfer-config={json.dumps(tier)}")
    return arguments


def _plugin(pool: InferencePool, token: Path, index: int) -> dict[str, Any]:
    """The plugin's settings; without a policy of ours vLLM's own order stays."""
    engine = pool.spec.engine
    feather = None if engine.feather.policy == "Fcfs" else options.feather(engine.feather)
    eviction = None if engine.eviction.policy == "Lru" else options.eviction(engine.eviction, _BLOCK_TOKENS)
    plugin = {"feather": feather, "eviction": eviction, "batchLimit": engine.batch_limit, "seed": index}
    if engine.host_memory is not None:
        plugin["hostTier"] = options.host_tier(engine.host_memory)
    return {**plugin, "fleet": {"adminTokenFile": str(token)}}


_BLOCK_TOKENS = 16  # vLLM's default on GPUs: what the paper's formula counts a block as
