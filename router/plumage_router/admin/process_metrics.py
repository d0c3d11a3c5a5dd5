"""The resources of this process from Linux' /proc, under the names of Prometheus' client libraries, and its tasks."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plumage.prometheus.exposition import counter, gauge

__all__ = ["process_lines"]

_SELF: Final = Path("/proc/self")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def process_lines() -> Iterator[str]:
    """The metric families; none without /proc. Call it in the event loop."""
    try:
        read = _read()
    except OSError:
        return
    yield from gauge("plumage_router_tasks", "Tasks of the event loop.", len(asyncio.all_tasks()))
    yield from counter("process_cpu_seconds", "User and system CPU time.", read["cpu"])
    for name, text, value in (
        ("resident_memory_bytes", "Resident memory.", read["resident"]),
        ("virtual_memory_bytes", "Virtual memory.", read["virtual"]),
        ("start_time_seconds", "Start of the process, in seconds since the epoch.", read["start"]),
        ("open_fds", "Open file descriptors.", read["fds"]),
        ("max_fds", "Limit of open file descriptors.", read["most_fds"]),
    ):
        yield from gauge(f"process_{name}", text, value)


def _read() -> dict[str, float]:
    virtual, resident = (int(pages) * _PAGE for pages in (_SELF / "statm").read_text().split()[:2])
    fields = (_SELF / "stat").read_text().rpartition(")")[2].split()  # the name before it may contain anything
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return {
        "cpu": sum(os.times()[:2]),
        "resident": resident,
        "virtual": virtual,
        "start": float(boot.split()[1]) + int(fields[19]) / _TICKS,
        "fds": len(os.listdir(_SELF / "fd")) - 1,  # without the one that lists them
        "most_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
