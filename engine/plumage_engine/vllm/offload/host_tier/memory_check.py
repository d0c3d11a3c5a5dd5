"""Checks that the machine has the memory that the host tier was given, before vLLM allocates it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from plumage.errors import ConfigurationError

__all__ = ["check_host_memory", "machine_memory"]

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SHARED = Path("/dev/shm")


def machine_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Bytes of memory: the machine's, or its container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit in map(_limit, limits) if limit is not None)])


def check_host_memory(wanted: int, memory: int, *, shared: bool, folder: Path = _SHARED) -> None:
    """ConfigurationError where `wanted` bytes exceed `memory`, or the shared memory that vLLM maps them from.

    shared: vLLM's CUDA worker maps a file under /dev/shm, which has 64 MiB in a pod by default.
    """
    if wanted > memory:
        raise ConfigurationError(
            f"host tier: cpu_bytes_to_use is {_gib(wanted)}, but this machine has {_gib(memory)} of memory. "
            "Set less in --kv-transfer-config, kv_connector_extra_config, or raise the container's memory limit."
        )
    room = shutil.disk_usage(folder).total if shared and folder.is_dir() else wanted
    if wanted > room:
        raise ConfigurationError(
            f"host tier: cpu_bytes_to_use is {_gib(wanted)}, but {folder} has {_gib(room)}. Give the pod a memory "
            f"emptyDir of that size at {folder}, or set less."
        )


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
