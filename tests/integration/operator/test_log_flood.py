"""A problem of all pools at once is one line in the operator's log, with the cause."""

from __future__ import annotations

import signal
import time

import pytest
from support.operator_fleet import Fleet, pool

pytestmark = pytest.mark.timeout(600)

POOLS = 8
_OUTAGE_S = 8.0


@pytest.fixture
def pools(fleet: Fleet, namespace: str) -> None:
    """All pools have a status, which the operator writes last."""
    manifests = [pool("  replicas: 1", f"pool-{number}") for number in range(POOLS)]
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin="\n---\n".join(manifests))

    def seen() -> bool:
        found = fleet.get(namespace, "ppool").get("items", [])
        return len([one for one in found if one.get("status")]) == POOLS

    fleet.until(seen)


def log_of(fleet: Fleet) -> list[str]:
    return [line for name in fleet.operators for line in fleet.log(name).splitlines()]


def test_deleted_namespace_logs_few_lines_and_no_creation(fleet: Fleet, namespace: str, pools: None) -> None:
    before = len(log_of(fleet))
    fleet.kubectl("delete", "namespace", namespace, "--wait=true", "--timeout=120s")
    lines = log_of(fleet)[before:]
    assert not [line for line in lines if "ChildRecreated" in line or "created again" in line]
    assert not [line for line in lines if "event could not be written" in line], "nobody can read it there"
    assert len([line for line in lines if namespace in line]) <= 6, "\n".join(lines)


def test_api_server_outage_logs_one_line_per_cause(fleet: Fleet, namespace: str, pools: None) -> None:
    before = len(log_of(fleet))
    fleet.server.processes.stop("apiserver", signal.SIGKILL)
    time.sleep(_OUTAGE_S)
    fleet.server.start("apiserver")
    fleet.keep_up()
    fleet.kubectl("-n", namespace, "delete", "service", "pool-0-router")

    def repaired() -> bool:
        fleet.keep_up()
        return bool(fleet.get(namespace, "service", "pool-0-router"))

    fleet.until(repaired)
    lines = log_of(fleet)[before:]
    assert any("can't renew the Lease" in line for line in lines), "it was noticed"
    assert len(lines) <= 25, "\n".join(lines)
