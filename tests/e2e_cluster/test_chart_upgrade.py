"""`helm upgrade` and `helm rollback` to a release with another image, during load on a pool: all its pods are replaced
without a failed request. test_two_operators.py has a release with more operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import lifecycle
from support.kube_access import Access, until
from support.kube_chat import chatting
from support.kube_fleet import Fleet
from support.kube_images import renamed
from support.kube_install import OPERATOR_NAMESPACE, Pool, revision, rollback, upgrade

# Answers take a second or two, so that each deleted pod has some to complete.
_BUSY = {"workers": 3, "pace_s": 0.5, "answer_tokens": 150}


@pytest.fixture
def another_image(access: Access, own: lifecycle.Cluster) -> Iterator[str]:
    """The tag of a release with another image than the installed one."""
    with renamed(access.image, lifecycle.images_folder()) as tag:
        yield tag


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


def _pods(access: Access, namespace: str, selector: str) -> list[dict[str, Any]]:
    return access.api.listed("pods", namespace, selector)
