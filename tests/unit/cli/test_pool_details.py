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
