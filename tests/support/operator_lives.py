"""`python -m support.operator_lives RECORD ARGUMENT…`: an operator that dies after each of its actions and is started
again, until nothing is left to do. So one run interrupts a plan at every place.

A process dies at its first action that no earlier process did. Otherwise each would end at the same action: a plan can
not see that an event was sent, and a new operator reports that its autoscaler is unknown. Each process is a fork of one
that loaded the program. It ends as by SIGKILL: nothing is closed, released or written. RECORD gets a line for each
action, with the number of the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from plumage_operator.__main__ import main
from plumage_operator.controller.actions import Action, Annotate, Apply, CreateSecret, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.perform import Performer
from plumage_operator.observed import key_of

__all__ = ["lives"]

_CRASHED = 86
_PR_SET_PDEATHSIG = 1


def lives(record: Path) -> list[list[str]]:
    """The actions of each process that did any. After the last action of each it died."""
    found: dict[str, list[str]] = {}
    for line in record.read_text().splitlines() if record.exists() else ():
        number, _, action = line.partition(" ")
        found.setdefault(number, []).append(action)
    return list(found.values())


def _run(record: Path, arguments: list[str]) -> int:
    for number in itertools.count():
        status = _life(number, record, arguments)
        if status != _CRASHED:
            return status
    raise AssertionError("count has no end")


def _life(number: int, record: Path, arguments: list[str]) -> int:
    parent = os.getpid()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    known = {action for life in lives(record) for action in life}
    do, one = Performer._do, asyncio.Lock()

    async def noted(self: Performer, pool: Any, action: Action) -> None:
        async with one:  # a concurrent action at the exit would be done and not recorded
            await do(self, pool, action)
            with record.open("a") as file:
                file.write(f"{number} {_words(action)}\n")
            if _words(action) not in known:
                os._exit(_CRASHED)

    with patch.object(Performer, "_do", noted):
        os._exit(main(arguments) if os.getppid() == parent else 1)


def _words(action: Action) -> str:
    """A text that is equal for two equal actions."""
    match action:
        case Apply(child, _):
            return f"Apply {' '.join(key_of(child))} {child['metadata']['annotations']}"
        case CreateSecret(secret, _):
            return f"MakeSecret {secret['metadata']['name']}"
        case Delete(kind, name, _):
            return f"Delete {kind} {name}"
        case Annotate(pod, annotations):
            return f"Annotate {pod} {dict(annotations)}"
        case EmitEvent():
            return f"EmitEvent {action.reason} {action.message}"
        case WriteStatus(status):
            figures = {name: status.get(name) for name in ("desiredReplicas", "replicas", "readyReplicas")}
            said = [f"{one['type']}={one['reason']}" for one in status["conditions"]]
            return f"WriteStatus {figures} {' '.join(said)}"


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), sys.argv[2:]))
