"""The device of a benchmark that really computes, and its clock.

On a CPU the device is this process' single thread, so its time is the process' CPU time: other work on the machine
affects the wall clock more. A GPU works asynchronously, so its time is the wall-clock time until it has done all its
work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from plumage.errors import ConfigurationError

__all__ = ["CPU", "CUDA", "DEVICES", "check_device", "device_name", "work_clock"]

CPU: Final = "cpu"
CUDA: Final = "cuda"
DEVICES: Final = (CPU, CUDA)


def check_device(device: str) -> None:
    """Raises ConfigurationError, with the remedy, if this Python's torch can not use the device."""
    if device == CPU:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"--device cuda: torch {torch.__version__} in {sys.prefix} finds no GPU it can use. On a machine with one, "
            "name by VLLM_VENV a virtual environment in which torch, and vLLM for the vllm benches, were installed for "
            "CUDA, and this checkout by pip install -e '.[engine,bench]'. Without a GPU omit --device."
        )


def work_clock(device: str) -> Callable[[], float]:
    """Seconds of the device's work so far, from an arbitrary start: only differences are meaningful."""
    if device == CPU:
        return time.process_time
    import torch

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def device_name(device: str) -> str:
    """The name for people: the GPU's own. The processor's name is among the machine's figures."""
    if device == CPU:
        return "cpu, one thread"
    import torch

    return str(torch.cuda.get_device_name())
