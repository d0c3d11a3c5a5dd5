"""Samples of all processes of a pool, and what they say once the load has ended. Reading is in a thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from plumage_bench.benches.soak.pages import IN_FLIGHT, TASKS, gauges, read_page, sum_of
from plumage_bench.benches.soak.process_sizes import ProcessSize, process_size, socket_states
from plumage_bench.benches.soak.restarts import processes
from plumage_bench.benches.soak.slope import Slope, slope_of
from plumage_bench.local_pool import LocalPool
from plumage_cli.errors import CliError

__all__ = ["Observer", "Sample", "left_over", "slope_in"]

_ADMIN_KEY: Final = "admin.key"
_CLIENTS: Final = ("router", "agent")  # of the directory
_DESCRIPTORS: Final = ("files", "sockets")


@dataclass(frozen=True, slots=True)
class Sample:
    """at: seconds since the load began. sizes, pages: by process, without those that are being restarted."""

    at: float
    sizes: Mapping[str, ProcessSize]
    pages: Mapping[str, Mapping[str, float]]

    def levels(self) -> dict[tuple[str, str], float]:
        """What must return to its level at rest: by process, and `files`, `sockets`, `tasks` or a gauge's name."""
        found: dict[tuple[str, str], float] = {}
        for name, size in self.sizes.items():
            found[name, "files"], found[name, "sockets"] = size.files, sum(size.sockets.values())
        for name, page in self.pages.items():
            names = {**dict.fromkeys(TASKS, "tasks"), **{one: one for one in IN_FLIGHT}}
            sums = ((what, sum_of(page, one)) for one, what in names.items())
            found |= {(name, what): value for what, value in sums if value is not None}
        return found


@dataclass(slots=True)
class Observer:
    """pool: is read with each sample. began: monotonic seconds. samples: all, in order. view: the pool's, the last."""

    pool: LocalPool
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    view: Mapping[str, Any] = field(default_factory=dict)

    async def sample(self) -> Sample:
        """Takes one, and adds it."""
        one = await asyncio.to_thread(self._sample)
        self.samples.append(one)
        return one

    async def run(self, every: float) -> None:
        """Takes one after the other until it is cancelled. every: seconds."""
        while True:
            began = time.monotonic()
            await self.sample()
            await asyncio.sleep(max(0.0, began + every - time.monotonic()))

    async def several(self, count: int) -> list[Sample]:
        """One a second."""
        found = []
        for _ in range(count):
            found.append(await self.sample())
            await asyncio.sleep(1.0)
        return found

    def _sample(self) -> Sample:
        with suppress(CliError):  # the supervisor was busy: the processes are those of the last view
            self.view = self.pool.view()
        at = time.monotonic() - self.began
        pids = {name: child["pid"] for name, child in processes(self.view).items() if child["pid"]}
        states = socket_states()
        sizes = {name: process_size(pid, states) for name, pid in {**pids, "supervisor": self.pool.process.pid}.items()}
        pages = {name: gauges(read_page(url, headers)) for name, (url, headers) in self._urls().items() if name in pids}
        known = {name: size for name, size in sizes.items() if size is not None}
        return Sample(at, known, {name: page for name, page in pages.items() if page})

    def _urls(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        key = (self.pool.folder / _ADMIN_KEY).read_text().strip()
        found: dict[str, tuple[str, Mapping[str, str]]] = {
            "router": (f"http://127.0.0.1:{self.pool.port}", {"x-plumage-admin-key": key})
        }
        for replica in self.view.get("replicas", ()):
            number = replica["id"].rpartition("-")[2]
            found |= {f"engine {number}": (replica["url"], {}), f"agent {number}": (replica["agentUrl"], {})}
        return found


def left_over(idle: Sequence[Sample], ended: Sequence[Sample]) -> dict[tuple[str, str], int]:
    """What is above its level at rest in every sample after the load, by process and what it is.

    The level is the highest of all processes of that role before the load. A client of the directory keeps as many
    connections as it once needed at the same time, which is one more or fewer by chance; so one is no leak. A leak at
    each of some event would leave more: the events are dozens of restarts and tens of thousands of requests.
    """
    before, after = (_each([one.levels() for one in samples]) for samples in (idle, ended))
    highest: dict[tuple[str, str], float] = {}
    for (name, what), values in before.items():
        role = _role(name), what
        highest[role] = max(highest.get(role, 0.0), *values)
    clients = len({name for name, _ in after if _role(name) in _CLIENTS})
    found = {}
    for (name, what), values in after.items():
        spare = (clients if name == "directory" else 1) if what in _DESCRIPTORS else 0
        more = min(values) - highest.get((_role(name), what), 0.0) - spare
        if more > 0:
            found[name, what] = math.ceil(more)
    return found


def _role(name: str) -> str:
    return name.partition(" ")[0]


def _each(levels: Iterable[Mapping[tuple[str, str], float]]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in levels:
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return found


def slope_in(samples: Sequence[Sample], name: str, start: float, end: float) -> Slope | None:
    """Of a process' resident bytes in [start, end]; None if it was restarted there, or has too few samples."""
    found = [(one.at, one.sizes[name]) for one in samples if start <= one.at <= end and name in one.sizes]
    if len({size.pid for _, size in found}) != 1:
        return None
    return slope_of([at for at, _ in found], [float(size.resident) for _, size in found])
