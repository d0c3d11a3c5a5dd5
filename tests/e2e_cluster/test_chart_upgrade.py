"""`helm upgrade` and `helm rollback` during load on a pool. A change of operators does not affect it. A release with
another image replaces all its pods without a failed request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import lifecycle
from support.kube_access import Access, until
from support.kube_chat import chatting
from support.kube_fleet import Fleet
from support.kube_images import renamed
from support.kube_install import OPERATOR_NAMESPACE, Pool, revision, rollback, upgrade

_LEASE = "plumage-operator"
# Answers take a second or two, so that each deleted pod has some to complete.
_BUSY = {"workers": 6, "pace_s": 0.5, "answer_tokens": 150}


@pytest.fixture
def another_image(access: Access, own: lifecycle.Cluster) -> Iterator[str]:
    """The tag of a release with another image than the installed one."""
    with renamed(access.image, lifecycle.images_folder()) as tag:
        yield tag


def test_operator_replicas_change_keeps_engines(access: Access, own: lifecycle.Cluster, pool: Pool) -> None:
    Fleet(access, own, pool).until_whole()
    installed, engines = revision(access), _uids(access, pool)
    assert len(engines) == 2
    with chatting(access, pool) as chats:
        upgrade(access, "--set", "operator.replicas=2")
        _is_looked_after(access, pool, operators=2)
        chats.go_on()
        assert _uids(access, pool) == engines
        rollback(access, installed)
        _is_looked_after(access, pool, operators=1)
        chats.go_on()
        assert _uids(access, pool) == engines


def test_release_with_other_image_replaces_pods_without_cut_chats(
    access: Access, own: lifecycle.Cluster, pool: Pool, another_image: str
) -> None:
    fleet, installed = Fleet(access, own, pool), revision(access)
    repository, _, tag = access.image.rpartition(":")
    fleet.until_whole()
    assert [len(fleet.pods(part)) for part in ("engine", "router", "directory")] == [2, 2, 1]
    with chatting(access, pool, **_BUSY) as chats:
        upgrade(access, "--set-string", f"image.tag={another_image}")
        _runs(access, fleet, f"{repository}:{another_image}")
        chats.go_on()
        rollback(access, installed)
        _runs(access, fleet, f"{repository}:{tag}")
        chats.go_on()


def _runs(access: Access, fleet: Fleet, image: str) -> None:
    """The operator and every pod of the pool have this image, and the pool is whole."""
    chosen = f"inference.plumage.dev/pool={fleet.pool.name}"
    until(lambda: _images(access, fleet.pool.namespace, chosen) == {image}, f"all pods of the pool run {image}")
    fleet.until_whole()
    assert _images(access, fleet.pool.namespace, chosen) == {image}
    assert _images(access, OPERATOR_NAMESPACE, "app.kubernetes.io/component=operator") == {image}


def _images(access: Access, namespace: str, selector: str) -> set[str]:
    specs = [pod["spec"] for pod in _pods(access, namespace, selector)]
    return {one["image"] for spec in specs for one in (*spec["containers"], *spec.get("initContainers", ()))}


def _is_looked_after(access: Access, pool: Pool, operators: int) -> None:
    """One of this many operators has the Lease and repairs the pool. The others report that they wait for it."""
    until(lambda: len(_operators(access)) == operators, f"operators: {operators}")
    until(lambda: _holder(access) in _operators(access), "one of them holds the Lease")
    _is_repaired(access, pool)
    holder = _holder(access)
    waiting = [name for name in _operators(access) if name != holder]
    assert len(waiting) == operators - 1
    until(lambda: all(f"waiting: {holder} is active" in _log(access, name) for name in waiting), "the others stand by")


def _is_repaired(access: Access, pool: Pool) -> None:
    """A deleted object of the pool is created again."""
    words, name = ("poddisruptionbudget", f"{pool.name}-engine"), f"{pool.name}-engine"
    old = access.get("poddisruptionbudget", name, pool.namespace)["metadata"]["uid"]
    access.kubectl("-n", pool.namespace, "delete", *words)

    def is_there() -> bool:
        found = access.get("poddisruptionbudget", name, pool.namespace)
        return bool(found) and found["metadata"]["uid"] != old

    until(is_there, f"the active operator makes {name} again")


def _holder(access: Access) -> str:
    return str(access.get("lease", _LEASE, OPERATOR_NAMESPACE)["spec"].get("holderIdentity"))


def _log(access: Access, pod: str) -> str:
    return access.kubectl("-n", OPERATOR_NAMESPACE, "logs", pod)


def _operators(access: Access) -> list[str]:
    """Names of the operators' pods, including terminating ones. They are the operators' identities too."""
    found = _pods(access, OPERATOR_NAMESPACE, "app.kubernetes.io/component=operator")
    return [pod["metadata"]["name"] for pod in found]


def _uids(access: Access, pool: Pool) -> set[str]:
    """The uids of the engines that do not terminate. An earlier test may have replaced some."""
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    pods = [pod["metadata"] for pod in _pods(access, pool.namespace, chosen)]
    return {pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


def _pods(access: Access, namespace: str, selector: str) -> list[dict[str, Any]]:
    listed = access.kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "json")
    found: list[dict[str, Any]] = json.loads(listed)["items"]
    return found
