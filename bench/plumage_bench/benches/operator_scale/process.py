"""The operator's process: memory and CPU time from /proc, the rest from /metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from plumage.fleet_report import HistogramReport
from plumage.prometheus.parser import buckets_of, samples

__all__ = ["Figures", "figures_of", "peak_megabytes", "processor_seconds", "read_figures"]

_PREFIX: Final = "plumage_operator_"
_SECONDS: Final = f"{_PREFIX}reconcile_seconds"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """waiting: pools that wait for a reconcile. looks: reconciles since the start, and the time of each."""

    leading: bool
    pools: int
    waiting: int
    looks: HistogramReport

    @property
    def p99(self) -> float:
        """Seconds, interpolated between the bounds of the histogram's buckets."""
        return self.looks.quantile(0.99) or 0.0


async def read_figures(session: aiohttp.ClientSession, port: int) -> Figures | None:
    """None while it does not answer."""
    try:
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            return figures_of(await answer.text())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def figures_of(page: str) -> Figures:
    """From a metrics page. KeyError if it is not the operator's."""
    found = list(samples(page, _PREFIX))
    values = {sample.name.removeprefix(_PREFIX): sample.value for sample in found}
    buckets = buckets_of(found, _SECONDS)
    if buckets is None:
        raise KeyError(_SECONDS)
    return Figures(
        values["leading"] == 1.0, int(values["pools"]), int(values["queue_length"]), HistogramReport(*buckets)
    )


def peak_megabytes(pid: int) -> float:
    """The peak memory of a process so far (VmHWM), in 10⁶ bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024 / 1e6


def processor_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time of each so far."""
    return {name: _processor_seconds(pid) for name, pid in pids.items()}


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
