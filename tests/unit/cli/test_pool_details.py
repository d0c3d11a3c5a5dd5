"""`plumage get` shows why a pod of a pool does not serve."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from plumage_cli.cluster.tables import pool_details

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
POOL: dict[str, Any] = {"metadata": {"name": "chat", "namespace": "chat"}, "spec": {}, "status": {"model": "tiny"}}


def shown(conditions: dict[str, str]) -> str:
    pod = {
        "metadata": {"name": "chat-engine-0", "creationTimestamp": "2026-11-24T11:00:00Z"},
        "spec": {"nodeName": "node-2"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": is_} for kind, is_ in conditions.items()],
        },
    }
    console = Console(width=160)
    with console.capture() as printed:
        console.print(pool_details(POOL, [pod], NOW))
    return next(line for line in printed.get().splitlines() if "chat-engine-0" in line)


@pytest.mark.parametrize(
    ("ready", "containers", "state"),
    [("False", "True", "NodeLost"), ("False", "False", "Running"), ("True", "True", "Running")],
)
def test_state_of_a_pod_whose_node_stopped_reporting(ready: str, containers: str, state: str) -> None:
    assert f" {state} " in shown({"Ready": ready, "ContainersReady": containers})


def test_adapters_show_their_replicas_and_what_is_wrong() -> None:
    adapters = [
        {"name": "sql", "replicas": 2, "failedReplicas": 0, "message": ""},
        {"name": "law", "replicas": 1, "failedReplicas": 1, "message": "chat-engine-1: no such folder"},
    ]
    pool = {**POOL, "status": {**POOL["status"], "readyReplicas": 2, "adapters": adapters}}
    console = Console(width=160)
    with console.capture() as printed:
        console.print(pool_details(pool, [], NOW))
    lines = [line.split() for line in printed.get().splitlines()]
    assert ["sql", "2/2"] in lines
    assert ["law", "1/2", "chat-engine-1:", "no", "such", "folder"] in lines
