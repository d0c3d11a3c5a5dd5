"""Runs benchmarks of real vLLM or of torch in the Python that has them: `.venv-vllm`, not the developer's environment.

The process replaces itself by the same command in that Python. For a GPU, VLLM_VENV names a virtual environment with
CUDA builds, which the user must set up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from plumage.errors import ConfigurationError
from plumage_bench.device import CPU, check_device
from plumage_bench.registry import Benchmark

__all__ = ["go_where_it_runs", "hand_over"]

_CHECKOUT = Path(__file__).parents[2]


def go_where_it_runs(benchmark: Benchmark, device: str, module: str, arguments: Sequence[str]) -> str:
    """Continue in a Python that has what the benchmark needs. Returns the device for the run: `device`, or the CPU for
    a benchmark that computes on none. ConfigurationError if that Python or the device does not exist."""
    device = device if benchmark.on_device else CPU
    if benchmark.modules:
        hand_over(benchmark, module, arguments, device)
    check_device(device)
    return device


def hand_over(benchmark: Benchmark, module: str, arguments: Sequence[str], device: str = CPU) -> None:
    """Return if the modules can be imported here. Otherwise replace the process by `python -m module arguments` of
    `.venv-vllm`, or of the folder that VLLM_VENV names. With a GPU that folder comes first. ConfigurationError if it
    was not set up."""
    named = os.environ.get("VLLM_VENV")
    venv = Path(named or _CHECKOUT / ".venv-vllm").absolute()
    here = venv == Path(sys.prefix)
    if all(find_spec(name) is not None for name in benchmark.modules) and (device == CPU or not named or here):
        return
    python = venv / "bin" / "python"
    if here or not (python if device != CPU else venv / ".ready").exists():
        raise ConfigurationError(_missing(benchmark, device, venv))
    sys.stdout.flush()
    os.execv(python, [str(python), "-m", module, *arguments])


def _missing(benchmark: Benchmark, device: str, venv: Path) -> str:
    if device == CPU:
        what = "real vLLM, which" if benchmark.needs_vllm else "torch, which"
        return (
            f"bench {benchmark.name} runs {what} is not set up here: `make setup-vllm` installs its CPU build into "
            ".venv-vllm (Linux on x86-64, 3.5 GB)"
        )
    return (
        f"bench {benchmark.name} --device {device} needs {' and '.join(benchmark.modules)} built for CUDA, and {venv} "
        "has not: name by VLLM_VENV a virtual environment that has them, and this checkout by "
        "pip install -e '.[engine,bench]'"
    )
