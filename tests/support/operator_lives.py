"""`python -m support.operator_lives RECORD ARGUMENT…`: the operator, which dies after each of its actions and is
started again, until a life of it has nothing more to do. So one pass cuts a plan at every place.

A life dies at its first action that none before it did: an event leaves nothing by which the next plan knows that it
was told, and a new operator says that its autoscaler is unknown, so that each would end at the same place. Each life
is a fork of the process that loaded the program, and ends as by SIGKILL: nothing is closed, released or written. RECORD
gets a line for each action, with its life's number.
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
    """What each life did, those that did something. The last of each is where it died."""
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
        async with one:  # what another look has under way at the end would be done, and told nowhere
            await do(self, pool, action)
            with record.open("a") as file:
                file.write(f"{number} {_words(action)}\n")
            if _words(action) not in known:
                os._exit(_CRASHED)

    with patch.object(Performer, "_do", noted):
        os._exit(main(arguments) if os.getppid() == parent else 1)


def _words(action: Action) -> str:
    """Two that say the same are the same."""
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
            return f"Tell {action.reason} {action.message}"
        case WriteStatus(status):
            figures = {name: status.get(name) for name in ("desiredReplicas", "replicas", "readyReplicas")}
            said = [f"{one['type']}={one['reason']}" for one in status["conditions"]]
            return f"WriteStatus {figures} {' '.join(said)}"


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), sys.argv[2:]))
