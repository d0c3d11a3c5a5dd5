"""Which process is restarted when. A restarted process begins with other memory, so each that is judged has a window
without a restart, while others are restarted beside it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from plumage_cli.local.pool_view import router_name

__all__ = ["JUDGED", "Restart", "pid_of", "plan", "processes", "restart"]

_ROUTER: Final = (0.05, 0.10, 0.15, 0.20)  # shares of the run; then its stores are filled
_DIRECTORY: Final = (0.09, 0.25, 0.42, 0.56)
_EARLY: Final = (("engine 0", 0.01), ("engine 1", 0.02), ("agent 0", 0.11), ("agent 1", 0.18))
_IN_TURN: Final = ("engine 2", "agent 3", "engine 3", "agent 2")
_TURNS: Final = (0.03, 0.94)  # the last ones have time to be ready again
JUDGED: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("router", "supervisor", "engine 0", "engine 1", "agent 0", "agent 1"), (0.55, 1.0)),
    "directory": (0.75, 1.0),
}
"""By process: the part of the run over which its memory is judged."""


@dataclass(frozen=True, slots=True, order=True)
class Restart:
    """at: seconds since the load began. kill: by SIGKILL instead of SIGTERM."""

    at: float
    name: str
    kill: bool


def plan(seconds: float, every: float) -> list[Restart]:
    """All restarts of a run of so many seconds, in order. every: seconds between those of the engines and agents that
    are restarted until the end. Each process is killed every other time."""
    fixed = [*(("router", part) for part in _ROUTER), *(("directory", part) for part in _DIRECTORY), *_EARLY]
    times = sorted([*((part * seconds, name) for name, part in fixed), *_in_turn(seconds, every)])
    count: dict[str, int] = {}
    found = []
    for at, name in times:
        count[name] = count.get(name, 0) + 1
        found.append(Restart(at, name, kill=count[name] % 2 == 0))
    return found


def _in_turn(seconds: float, every: float) -> Iterator[tuple[float, str]]:
    first, last = (part * seconds for part in _TURNS)
    number = 0
    while first + number * every < last:
        yield first + number * every, _IN_TURN[number % len(_IN_TURN)]
        number += 1


def processes(view: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The children in a pool's view, by name: router, directory, engine 0, agent 0 and so on."""
    found = {router_name(number): router for number, router in enumerate(view["routers"])}
    if view["directory"]:
        found["directory"] = view["directory"]
    for replica in view["replicas"]:
        number = replica["id"].rpartition("-")[2]
        found |= {f"{role} {number}": replica[role] for role in ("engine", "agent")}
    return found


def pid_of(view: Mapping[str, Any], name: str) -> int | None:
    """None while it does not run."""
    pid: int | None = processes(view)[name]["pid"] if name in processes(view) else None
    return pid


def restart(view: Mapping[str, Any], one: Restart, send: Callable[[int, int], None] = os.kill) -> bool:
    """Ends the process; its supervisor starts it again. False if it does not run."""
    pid = pid_of(view, one.name)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        send(pid, signal.SIGKILL if one.kill else signal.SIGTERM)
    return True
