"""The device that a benchmark of real computation runs on, and the clock that measures it.

On a CPU the device is this process' one thread, so what it took is the process' CPU time: other work on the machine
moves the wall's clock more than that. A GPU works by itself: what it took is the wall's time until it has done all of
its work.
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
    """ConfigurationError, with what to do, where the torch of this Python can't use it."""
    if device == CPU:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"--device cuda: torch {torch.__version__} in {sys.prefix} finds no GPU it can use. On a machine with one, "
            "name by VLLM_VENV a virtual environment in which torch, and vLLM for the vllm benches, were installed for "
            "CUDA, and this checkout by pip install -e '.[engine,bench]'. Without a GPU leave --device away."
        )


def work_clock(device: str) -> Callable[[], float]:
    """Seconds of the device's work so far, from any start: differences count."""
    if device == CPU:
        return time.process_time
    import torch

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def device_name(device: str) -> str:
    """For people: the GPU's own name; the processor's is among the machine's figures."""
    if device == CPU:
        return "cpu, one thread"
    import torch

    return str(torch.cuda.get_device_name())
