"""The faults and their times. A seed chooses each, and the process or file that exists at that time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["KINDS", "Faults", "processes"]

KINDS: Final = (
    "kill router", "kill engine", "kill agent", "kill directory", "stop router", "stop engine", "stop agent",
    "stop directory", "remove socket", "remove file",
)  # fmt: skip
_READY_LEFT: Final = 2  # replicas without faults, so that no request is lost because there is no replica
_PAUSES: Final = (0.3, 1.0, 3.0)  # seconds that a process is stopped


def processes(view: Mapping[str, Any]) -> dict[str, list[int]]:
    """Pids by role, of the processes that the pool's view shows as running."""
    found = {"router": [router["pid"] for router in view["routers"] if router["pid"]]}
    found["directory"] = [view["directory"]["pid"]] if view["directory"] and view["directory"]["pid"] else []
    for role in ("engine", "agent"):
        found[role] = [one[role]["pid"] for one in view["replicas"] if one[role]["pid"] and one["state"] == "Ready"]
    return found


@dataclass(slots=True)
class Faults:
    """view: the pool as its supervisor reports it. done: (seconds since the start, kind), in order."""

    folder: Path
    view: Callable[[], Mapping[str, Any]]
    rng: random.Random
    done: list[tuple[float, str]] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    skipped: int = 0

    async def run(self, count: int, every: float, advance: Callable[[int], None]) -> None:
        """This many faults, one about every `every` seconds."""
        for _ in range(count):
            await asyncio.sleep(every * self.rng.uniform(0.5, 1.5))
            while not await self._one(self.rng.choice(KINDS)):
                self.skipped += 1
                await asyncio.sleep(0.1)
            advance(1)

    async def _one(self, kind: str) -> bool:
        """Whether the fault was possible: not for a process that was killed and has not restarted, nor for one of the
        last replicas."""
        verb, role = kind.split()
        if verb == "remove":
            return self._remove(kind, sockets=role == "socket")
        view = await asyncio.to_thread(self.view)
        pids = processes(view).get(role, [])
        if not pids or (role == "engine" and len(pids) <= _READY_LEFT):
            return False
        return await (self._kill if verb == "kill" else self._stop)(kind, role, self.rng.choice(pids))

    async def _kill(self, kind: str, role: str, pid: int) -> bool:
        self._note(kind)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[role] += 1
        return True

    async def _stop(self, kind: str, role: str, pid: int) -> bool:
        self._note(kind)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(self.rng.choice(_PAUSES))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return True

    def _remove(self, kind: str, *, sockets: bool) -> bool:
        there = [path for path in sorted(self.folder.rglob("*")) if path.is_socket() is sockets and _may_go(path)]
        if not there:
            return False
        self._note(kind)
        self.rng.choice(there).unlink(missing_ok=True)
        return True

    def _note(self, kind: str) -> None:
        self.done.append((time.monotonic(), kind))


def _may_go(path: Path) -> bool:
    """Not the second links, from which sockets are repaired, nor logs, which show crashes."""
    return not path.is_dir() and ".sockets" not in path.parts and path.suffix not in (".log", ".1")
