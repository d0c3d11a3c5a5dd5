"""A release gets a second operator and loses it again, by `helm upgrade` and `helm rollback` during load on a pool. One
operator has the Lease, and the other takes over when the first is killed. The engines stay, and no chat fails."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.lifecycle import Cluster
from support.kube_access import Access, until
from support.kube_chat import Chats, chatting
from support.kube_fleet import Fleet
from support.kube_install import OPERATOR_NAMESPACE, Pool, revision, rollback, upgrade

LEASE = "plumage-operator"
OPERATORS = "app.kubernetes.io/component=operator"


@pytest.fixture(scope="module")
def chats(access: Access, own: Cluster, pool: Pool) -> Iterator[Chats]:
    """Clients of the pool, during all tests of this module."""
    Fleet(access, own, pool).until_whole()
    with chatting(access, pool) as chats:
        yield chats


@pytest.fixture(scope="module")
def engines(access: Access, chats: Chats, pool: Pool) -> set[str]:
    """The engines before the first change."""
    found = uids(access, pool)
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def installed_before(access: Access, engines: set[str]) -> Iterator[str]:
    """The release's two operators. The revision before is in force again at the end."""
    before = revision(access)
    upgrade(access, "--set", "operator.replicas=2")
    yield before
    if len(operators(access)) > 1:
        rollback(access, before)


@pytest.mark.usefixtures("installed_before")
def test_second_operator_joins_and_keeps_engines(access: Access, pool: Pool, chats: Chats, engines: set[str]) -> None:
    is_looked_after(access, pool, number=2)
    chats.go_on()
    assert uids(access, pool) == engines


@pytest.mark.usefixtures("installed_before")
def test_second_operator_takes_over_from_killed_one(access: Access, pool: Pool, own: Cluster, chats: Chats) -> None:
    names = operators(access)
    assert len(names) == 2
    until(lambda: holder(access) in names, "one of them is active")
    first = holder(access)
    (second,) = names - {first}
    assert "active: watching" not in access.api.log(second, OPERATOR_NAMESPACE)

    # Stopped first, so that it does not release the Lease in the second before it is killed.
    own.kill_container(f"{OPERATOR_NAMESPACE}/{first}", "operator", signal.SIGSTOP)
    access.kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", first, "--force", "--grace-period=0")
    until(lambda: holder(access) not in ("", first), "another holds the Lease")
    # The one that stood by and the one that replaces the first both wait until the Lease expires. Either may take it.
    second = holder(access)
    assert second in operators(access)

    is_repaired(access, pool)
    assert renewals_of_one(access, second)
    is_repaired(access, pool)
    chats.go_on()


def test_rollback_to_one_operator_keeps_engines(
    access: Access, pool: Pool, installed_before: str, chats: Chats, engines: set[str]
) -> None:
    rollback(access, installed_before)
    is_looked_after(access, pool, number=1)
    chats.go_on()
    assert uids(access, pool) == engines


def is_looked_after(access: Access, pool: Pool, number: int) -> None:
    """One of this many operators has the Lease and repairs the pool. The others report that they wait for it."""
    until(lambda: len(pods(access, OPERATOR_NAMESPACE, OPERATORS)) == number, f"operators: {number}")
    until(lambda: holder(access) in operators(access), "one of them holds the Lease")
    is_repaired(access, pool)
    active = holder(access)
    waiting = operators(access) - {active}
    assert len(waiting) == number - 1
    said = f"waiting: {active} is active"
    until(lambda: all(said in access.api.log(name, OPERATOR_NAMESPACE) for name in waiting), "the others stand by")


def is_repaired(access: Access, pool: Pool) -> None:
    """A deleted object of the pool is created again."""
    name = f"{pool.name}-engine"
    old = access.api.get("poddisruptionbudgets", name, pool.namespace)["metadata"]["uid"]
    access.api.delete("poddisruptionbudgets", name, pool.namespace)

    def is_there() -> bool:
        found = access.api.get("poddisruptionbudgets", name, pool.namespace)
        return bool(found) and found["metadata"]["uid"] != old

    until(is_there, f"the active operator makes {name} again")


def pods(access: Access, namespace: str, selector: str) -> list[dict[str, Any]]:
    """The metadata of pods, including terminating ones."""
    return [pod["metadata"] for pod in access.api.listed("pods", namespace, selector)]


def operators(access: Access) -> set[str]:
    """Names of the operators' pods that do not terminate. They are the operators' identities too."""
    return {pod["name"] for pod in pods(access, OPERATOR_NAMESPACE, OPERATORS) if "deletionTimestamp" not in pod}


def uids(access: Access, pool: Pool) -> set[str]:
    """The uids of the engines that do not terminate. An earlier test may have replaced some."""
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    return {pod["uid"] for pod in pods(access, pool.namespace, chosen) if "deletionTimestamp" not in pod}


def lease(access: Access) -> dict[str, Any]:
    return dict(access.api.get("leases", LEASE, OPERATOR_NAMESPACE)["spec"])


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
