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
from plumage.settings import Meeting, plugin_settings, vllm_flags
from plumage.settings.vllm import ROUTES
from plumage_cli.errors import CliError

__all__ = [
    "PYTHON",
    "VllmSite",
    "find_vllm",
    "mistakes",
    "needs_weights",
    "settings",
    "write_tiny_model",
]

PYTHON = "PLUMAGE_VLLM_PYTHON"
"""Environment variable that names the interpreter with vLLM."""
_LOOK_SECONDS = 120.0
_WRITE_SECONDS = 300.0
_END_SECONDS = 5  # vLLM's own patience at its end; the supervisor's is twice as long
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
    if any(variable.value_from is not None for variable in spec.engine.env):
        found.append("spec.engine.env: may not refer to Secrets or ConfigMaps in local mode")
    return found


def settings(
    pool: InferencePool, site: VllmSite, meeting: Meeting, *, model_folder: Path, index: int, port: int, host: str
) -> dict[str, Any]:
    """Of `plumage_cli.local.vllm_child`: the command, and what its environment has beside this one's."""
    flags = vllm_flags(
        pool,
        meeting,
        model=str(model_folder),
        host=host,
        port=port,
        shutdown_seconds=_END_SECONDS,
        adapters={adapter.name: unquote(urlsplit(adapter.uri).path) for adapter in pool.spec.model.adapters},
    )
    own = len(flags) - len(pool.spec.engine.args)  # a person's arguments stay last: they win
    eager = ("--enforce-eager", "--gpu-memory-utilization=0.4") if site.cpu else ()
    return {
        "port": port,
        "apiKeyFile": meeting.api_key,
        "command": [site.python, "-m", "vllm.entrypoints.openai.api_server", *flags[:own], *eager, *flags[own:]],
        "environment": {
            **_platform(site),
            "PLUMAGE_VLLM": json.dumps(plugin_settings(pool, meeting.token, index)),
            "VLLM_PLUGINS": ROUTES,
            "VLLM_NO_USAGE_STATS": "1",
            **{variable.name: variable.value or "" for variable in pool.spec.engine.env},
        },
    }


def _platform(site: VllmSite) -> dict[str, str]:
    """On a CPU: a cache of one GiB, and threads that no other engine is bound to."""
    if not site.cpu:
        return {}
    threads = {"OMP_NUM_THREADS": str(site.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {**threads, "VLLM_CPU_KVCACHE_SPACE": "1"}
