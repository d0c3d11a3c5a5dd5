"""The Python interpreter that has vLLM, which lives in an environment of its own.

It is `--vllm-python`, else PLUMAGE_VLLM_PYTHON, else `.venv-vllm` in the working directory, else the interpreter that
runs this command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from plumage_cli.errors import CliError
from plumage_cli.local.plan.vllm import VllmInterpreter

__all__ = ["PYTHON", "find_vllm", "write_tiny_model"]

PYTHON = "PLUMAGE_VLLM_PYTHON"
"""Environment variable that names the interpreter with vLLM."""
_IMPORT_SECONDS = 120.0
_WRITE_SECONDS = 300.0
_HAS_VLLM = "import importlib.util as u, sys; sys.exit(not (u.find_spec('vllm') and u.find_spec('plumage_engine')))"
_SETUP = "make setup-vllm creates one for CPUs; where vLLM is installed already: pip install plumage-llm[engine] there"


def find_vllm(option: Path | None, environment: Mapping[str, str], replicas: int) -> VllmInterpreter:
    """The interpreter for `replicas` engines. CliError, with how to get vLLM, where the interpreter has none."""
    chosen = str(option or environment.get(PYTHON, ""))
    beside = Path(".venv-vllm/bin/python")
    python = chosen or (str(beside.absolute()) if beside.is_file() else sys.executable)
    try:
        has = subprocess.run([python, "-c", _HAS_VLLM], check=False, timeout=_IMPORT_SECONDS, capture_output=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError(f"can't run {python} to start vLLM ({type(error).__name__}): {_SETUP}") from None
    if has.returncode:
        raise CliError(f"engine.runtime VLLM: {python} has no vLLM with Plumage's plugin: {_SETUP}; or set {PYTHON}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return VllmInterpreter(python, cpu=shutil.which("nvidia-smi") is None, threads=max(1, cores // max(1, replicas)))


def write_tiny_model(vllm: VllmInterpreter, folder: Path) -> Path:
    """Write the built-in model with random weights to `folder`, with the torch that vLLM brings.

    CliError on failure.
    """
    command = [vllm.python, "-m", "plumage_engine.vllm.tiny_model", str(folder)]
    done = subprocess.run(command, check=False, timeout=_WRITE_SECONDS, capture_output=True, text=True)
    if done.returncode:
        raise CliError(f"can't write the tiny model's weights:\n{done.stderr.strip()[-2000:]}")
    return folder
