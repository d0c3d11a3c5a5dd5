"""Waiting for a pool's processes: what ends the wait, and what is reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from plumage.membership import MemberState
from plumage_cli.errors import ProcessFailedError
from plumage_cli.local.pool.readiness import Readiness


def child(name: str, **state: Any) -> Any:
    plan = SimpleNamespace(name=name, ready_seconds=0.1, ready="http://router/health")
    log = SimpleNamespace(last_lines=lambda: "its last line")
    return SimpleNamespace(**{"plan": plan, "log": log, "refused": False, "crashes": 0, "last_exit": "failed", **state})


def replica(state: MemberState, **engine: Any) -> Any:
    plan = SimpleNamespace(id="chat-0", agent=SimpleNamespace(ready_seconds=0.1))
    processes = {"engine": child("engine chat-0", pid=7, **engine), "agent": child("agent chat-0")}
    return SimpleNamespace(plan=plan, state=state, without_agent=True, **processes)


def readiness(lines: list[str], statuses: list[int] | None = None) -> Readiness:
    def answer(_: httpx.Request) -> httpx.Response:
        if not statuses:
            raise httpx.ConnectError("refused")
        return httpx.Response(statuses.pop(0))

    return Readiness(httpx.AsyncClient(transport=httpx.MockTransport(answer)), lines.append)


async def test_ready_replica_is_reported_once() -> None:
    lines: list[str] = []
    await readiness(lines).of_replicas([replica(MemberState.READY)])
    without = "; its agent does not answer, so its cache is not in the directory"
    assert lines == [f"replica chat-0 ready (engine pid 7){without}"]


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        ({"refused": True}, "engine chat-0 can't run with its settings"),
        ({"crashes": 4}, "engine chat-0 failed, 4 times in a row"),
        ({}, r"engine chat-0 was not ready within 0\.1 s"),
    ],
)
async def test_replica_that_cannot_become_ready_ends_the_wait(engine: dict[str, Any], error: str) -> None:
    with pytest.raises(ProcessFailedError, match=f"{error}.*:\nits last line"):
        await readiness([]).of_replicas([replica(MemberState.WARMING, **engine)])


async def test_router_is_ready_once_it_answers() -> None:
    router = child("router")
    router.plan.ready_seconds = 60.0
    await readiness([], [503, 200]).of_router(router, lambda: True)
    await readiness([], [503]).of_router(router, lambda: False)


async def test_router_that_never_answers_ends_the_wait() -> None:
    router = child("router")
    with pytest.raises(ProcessFailedError, match=r"router was not ready within 0\.1 s"):
        await readiness([]).of_router(router, lambda: True)
