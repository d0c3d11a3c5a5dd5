"""The cluster of tests/e2e_cluster, with the engine image on its nodes and the example's pool of real vLLM.

These tests have their own folder, because the image takes gigabytes (`make e2e-vllm`). PLUMAGE_E2E_ENGINE_IMAGE names
another engine image. It is required with PLUMAGE_E2E=kubeconfig, and the nodes must be able to pull it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import images, lifecycle
from cluster.errors import ClusterError
from e2e_cluster.conftest import access
from support.kube_access import Access
from support.kube_install import ROOT, Pool, install, remove_pool, uninstall
from support.needs import missing

__all__ = ["access"]

_READY_S = 600
_LIMIT_S = 1200  # the first test waits for the import of the image, the cluster and vLLM's start
_IMAGE = "PLUMAGE_E2E_ENGINE_IMAGE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def engine_image(access: Access) -> str:
    """The name of the engine image, after its import on the nodes."""
    named = os.environ.get(_IMAGE)
    if access.own is None:
        return named or missing(_IMAGE, "make images IMAGES=cpu-engine, push it where your nodes pull, name it")
    image = named or f"localhost/plumage-engine:{access.image.rpartition(':')[2]}"
    try:
        images.import_image(image, lifecycle.images_folder())
    except ClusterError as error:
        missing(f"the image {image}", f"make images IMAGES=cpu-engine, about 4 GB and ten minutes once ({error})")
    return image


@pytest.fixture(scope="session")
def pool(access: Access, engine_image: str) -> Iterator[Pool]:
    """The example's pool, Ready."""
    repository, _, tag = engine_image.rpartition(":")
    engine = f"engineImage.repository={repository},engineImage.tag={tag}"
    install(
        access, "--set-string", engine, "--set", "networkPolicy.monitoringNamespaces={vllm}"
    )  # the tests read metrics there
    try:
        made = _applied(access)
        yield made
        remove_pool(access, made)
    finally:
        uninstall(access)


def _applied(access: Access) -> Pool:
    """Applies the example and waits: vLLM starts in half a minute of work, longer on a busy machine."""
    pool, began = Pool("vllm", "vllm", 0.0), time.monotonic()
    access.namespace(pool.namespace)
    access.kubectl("-n", pool.namespace, "apply", "-f", str(ROOT / "examples" / "vllm-cpu.yaml"))
    waiting = ("wait", "--for=condition=Ready", f"inferencepool/{pool.name}", f"--timeout={_READY_S}s")
    try:
        access.kubectl("-n", pool.namespace, *waiting)
    except AssertionError:
        print(access.kubectl("-n", pool.namespace, "get", "pods", "-o", "wide", check=False))
        print(access.kubectl("-n", pool.namespace, "logs", "deployment/vllm-engine", "-c", "engine", check=False))
        raise
    return replace(pool, ready_s=time.monotonic() - began)
