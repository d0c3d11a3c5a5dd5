"""The cluster of these tests. KUBECONFIG may name a cluster of `make cluster`. With PLUMAGE_E2E=kubeconfig it may name
any cluster whose nodes can pull PLUMAGE_E2E_IMAGE. Otherwise the tests start their own cluster, and end it after the
last test.

All modules share one cluster, one `helm install` and the example's pool. A module that needs a pool with other settings
applies one in a namespace of its own, and removes it. test_uninstall.py runs last and removes everything.
"""

from __future__ import annotations

import os
import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from cluster import images, lifecycle, programs, requirements
from cluster.cache import say
from cluster.errors import ClusterError, NotHereError
from cluster.runs import run_folder
from support.kube_access import Access, until
from support.kube_install import ROOT, Pool, apply_pool, install, is_installed, listing, remove_pool, uninstall
from support.needs import missing

_LIMIT_S = 900  # a test here waits for pods; the first one also waits for the cluster
_BUILD_S = 3000  # the first one may wait for its image, on a slow machine whose base is not there yet
_LAST = "test_uninstall.py"
_BUILT = "PLUMAGE_IMAGES_BUILT"  # make test builds the images beside the tests, and writes this file when it has ended
_LOOKS_S = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))
    # A stable sort. The example's pool costs CPU time for as long as it exists, so the modules that use it come late.
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    late = {item.path for item in own if "pool" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path.name == _LAST, item.path in late))
    if items and items[0] in own and os.environ.get(_BUILT):
        items[0].add_marker(pytest.mark.timeout(_LIMIT_S + _BUILD_S), append=False)


@pytest.fixture(scope="session")
def access() -> Iterator[Access]:
    """The cluster, with the plumage image on its nodes."""
    which = os.environ.get("PLUMAGE_E2E")
    assert which in (None, "own", "kubeconfig"), f"PLUMAGE_E2E must be own or kubeconfig, and is {which!r}"
    with ExitStack() as stack:
        found = _named() if which == "kubeconfig" else _test_cluster(stack, None if which == "own" else _standing())
        stack.callback(found.api.close)
        yield found


@pytest.fixture(scope="session")
def own(access: Access) -> lifecycle.Cluster:
    """The test cluster, for tests that access its nodes and processes."""
    if access.own is None:
        pytest.skip("needs the test cluster: it reaches nodes and processes, which it does on no other (make cluster)")
    return access.own


@pytest.fixture(scope="session")
def before(access: Access) -> frozenset[str]:
    """The objects in the cluster before Plumage was installed, including its DNS."""
    until(lambda: _serves_names(access), "the cluster's own deployments are up")
    return listing(access)


def _serves_names(access: Access) -> bool:
    found = access.api.listed("deployments", "kube-system")
    ready = [one["status"].get("readyReplicas", 0) >= one["spec"]["replicas"] for one in found]
    return bool(ready) and all(ready)


@pytest.fixture(scope="session")
def installed(access: Access, before: frozenset[str]) -> Iterator[None]:
    """The chart, by `helm install --wait`, with a ready operator and a short interval of the autoscaler."""
    install(access, "--set", f"operator.autoscaleSeconds={_LOOKS_S}")
    yield
    if is_installed(access):
        uninstall(access)


@pytest.fixture(scope="session")
def pool(access: Access, installed: None) -> Iterator[Pool]:
    """The example's pool, Ready."""
    made = apply_pool(access, "chat", "chat", (ROOT / "examples" / "pool.yaml").read_text())
    yield made
    if is_installed(access):
        remove_pool(access, made)


def _named() -> Access:
    kubeconfig = os.environ.get("KUBECONFIG")
    image = os.environ.get("PLUMAGE_E2E_IMAGE")
    if not kubeconfig or not image:
        missing("KUBECONFIG and PLUMAGE_E2E_IMAGE", "make images, push it where your nodes pull, name it")
    found = {name: Path(place) for name in ("kubectl", "helm") if (place := shutil.which(name))}
    if len(found) < 2:
        missing("kubectl and helm on the PATH", "https://kubernetes.io/docs/tasks/tools, https://helm.sh")
    return Access(Path(kubeconfig), found, image, None)


def _standing() -> lifecycle.Cluster | None:
    """The test cluster that KUBECONFIG names. Another cluster needs PLUMAGE_E2E=kubeconfig (0102), and is not used
    without it."""
    named = os.environ.get("KUBECONFIG")
    cluster = lifecycle.of_kubeconfig(named)
    if cluster is not None:
        say(f"tests run on the cluster in {cluster.run}, which they leave running")
    elif named:
        say(f"KUBECONFIG={named} is no test cluster that runs: left alone (PLUMAGE_E2E=kubeconfig takes it)")
    return cluster


def _test_cluster(stack: ExitStack, standing: lifecycle.Cluster | None) -> Access:
    image = os.environ.get("PLUMAGE_E2E_IMAGE", f"localhost/plumage:{_version()}")
    try:
        requirements.check(requirements.NODES.items())
        found = programs.required(programs.SETS["nodes"])
        images.find_tool()
    except NotHereError as error:
        missing("what the test cluster is made of", str(error))
    cluster = standing or _started(stack)
    try:
        _await_images()
        images.import_image(image, lifecycle.images_folder())
    except ClusterError as error:
        missing(f"the image {image}", f"make images IMAGES=plumage ({error})")
    return Access(cluster.kubeconfig, found, image, cluster)


def _await_images() -> None:
    """Raises ClusterError if their build failed: an older image would be tested."""
    if (name := os.environ.get(_BUILT)) is None:
        return
    built, deadline = Path(name), time.monotonic() + _BUILD_S
    while not (built.exists() and built.read_text()):
        if time.monotonic() > deadline:
            raise ClusterError(f"its build took longer than {_BUILD_S} s")
        time.sleep(1)
    if built.read_text().strip() != "0":
        raise ClusterError("its build failed")


def _started(stack: ExitStack) -> lifecycle.Cluster:
    run = stack.enter_context(run_folder("plumage-e2e-")) / "cluster"
    stack.callback(_stop, run)
    return lifecycle.start(run, nodes=2, attached=True)


def _stop(run: Path) -> None:
    with suppress(ClusterError):
        lifecycle.stop(run)


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version
