"""Two operators on kubelets: one has the Lease, and the other takes over when the first is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.lifecycle import Cluster
from support.kube_access import Access, until
from support.kube_install import OPERATOR_NAMESPACE, Pool, revision, rollback, upgrade

LEASE = "plumage-operator"
OPERATORS = "app.kubernetes.io/component=operator"


@pytest.fixture
def two(access: Access, pool: Pool) -> Iterator[None]:
    """The release's two operators, until a rollback."""
    installed = revision(access)
    upgrade(access, "--set", "operator.replicas=2")
    yield
    rollback(access, installed)


@pytest.mark.usefixtures("two")
def test_second_operator_takes_over_from_killed_one(access: Access, pool: Pool, own: Cluster) -> None:
    names = operators(access)
    assert len(names) == 2
    until(lambda: holder(access) in names, "one of them is active")
    first = holder(access)
    (second,) = names - {first}
    assert "active: watching" not in access.kubectl("-n", OPERATOR_NAMESPACE, "logs", second)

    # Stopped first, so that it does not release the Lease in the second before it is killed.
    own.kill_container(f"{OPERATOR_NAMESPACE}/{first}", "operator", signal.SIGSTOP)
    access.kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", first, "--force", "--grace-period=0")
    until(lambda: holder(access) not in ("", first), "another holds the Lease")
    assert holder(access) == second, "one that stands by is there before one that starts"

    resize(access, pool, 3)
    try:
        until(lambda: wanted(access, pool) == 3, "the second operator works")
    finally:
        resize(access, pool, 2)
    until(lambda: wanted(access, pool) == 2, "and works on")
    assert renewals_of_one(access, second)


def operators(access: Access) -> set[str]:
    """Names of the operator's pods that do not terminate."""
    listed = access.kubectl("-n", OPERATOR_NAMESPACE, "get", "pods", "-l", OPERATORS, "-o", "json")
    return {
        str(one["metadata"]["name"])
        for one in json.loads(listed)["items"]
        if "deletionTimestamp" not in one["metadata"]
    }


def lease(access: Access) -> dict[str, Any]:
    return dict(access.get("lease", LEASE, OPERATOR_NAMESPACE)["spec"])


def holder(access: Access) -> str:
    """The pod that has the Lease: an identity begins with its pod's name."""
    held = str(lease(access).get("holderIdentity") or "")
    return next((name for name in operators(access) | {held} if held.startswith(name)), held)


def renewals_of_one(access: Access, name: str) -> bool:
    """The same pod renews the Lease, while the pod that replaces the killed one waits."""
    before = lease(access)["renewTime"]
    until(lambda: lease(access)["renewTime"] != before, "it is renewed")
    until(lambda: len(operators(access)) == 2, "the killed one is replaced")
    return holder(access) == name


def resize(access: Access, pool: Pool, replicas: int) -> None:
    access.kubectl("-n", pool.namespace, "scale", f"ppool/{pool.name}", f"--replicas={replicas}")


def wanted(access: Access, pool: Pool) -> int:
    return int(access.get("deployment", f"{pool.name}-engine", pool.namespace)["spec"]["replicas"])
