"""Children and chart are valid by the schemas of each Kubernetes version that the chart supports.

The test cluster runs one version of Kubernetes. The published schemas of the oldest supported and the newest known
version show fields that another version lacks. Kinds of other projects (PodMonitor, HTTPRoute, the Gateway API's
InferencePool) have no schema here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.charts import CHART, Rendered
from support.needs import module
from support.operator_world import CONFIG

from plumage.api.v1alpha1 import InferencePool, Manifest, load_manifests
from plumage_operator.resources import GatewayContext, PoolContext, ServedPool, build_children, build_gateway_children

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
CHART_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
FOREIGN_GROUPS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/", "inference.networking.k8s.io/")


def _oldest() -> str:
    """The chart's `kubeVersion`."""
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    found = re.fullmatch(r">=(\d+\.\d+)\.0-0", wanted)
    assert found, wanted
    return found[1]


@cache
def _known() -> list[str]:
    """The minor versions that have schemas here, oldest first."""
    versions = module("kubernetes_validate.utils").all_versions()
    minors = {tuple(int(part) for part in version.split(".")[:2]) for version in versions}
    return [f"{major}.{minor}" for major, minor in sorted(minors)]


@pytest.fixture(scope="module", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    """The package reads a version's megabytes of schemas again for each object."""
    utils = module("kubernetes_validate.utils")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("schema_contents", "all_versions"):
            patch.setattr(utils, name, lru_cache(maxsize=64)(getattr(utils, name)))
        yield


@pytest.fixture(scope="module", params=["oldest", "middle", "newest"])
def version(request: pytest.FixtureRequest) -> str:
    supported = _known()[_known().index(_oldest()) :]
    return {"oldest": supported[0], "middle": supported[len(supported) // 2], "newest": supported[-1]}[request.param]


def _mistakes(objects: Iterable[dict[str, Any]], version: str) -> Iterator[str]:
    validate = module("kubernetes_validate")
    for one in objects:
        if one["apiVersion"].startswith(FOREIGN_GROUPS):
            continue
        try:
            validate.validate(one, version, strict=True)
        except validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            yield f"{one['kind']} {one['metadata']['name']}: {path}: {error.message}"


def _children(manifests: list[Manifest]) -> Iterator[dict[str, Any]]:
    pools = [one for one in manifests if isinstance(one, InferencePool)]
    contexts = [PoolContext(pool, CONFIG, 2) for pool in pools]
    for context in contexts:
        yield from build_children(context)
    served = tuple(ServedPool(context, (context.metadata.name,)) for context in contexts)
    for gateway in manifests:
        if not isinstance(gateway, InferencePool):
            yield from build_gateway_children(GatewayContext(gateway, CONFIG, served))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_children_of_example_are_valid_by_version(path: Path, version: str) -> None:
    children = list(_children(load_manifests(path.read_text(), path.name)))
    assert children
    assert list(_mistakes(children, version)) == []


@pytest.mark.parametrize("values", CHART_VALUES, ids=lambda path: path.name)
def test_chart_is_valid_by_version(values: Path, version: str) -> None:
    chart = module("helm_python").Chart
    with chart.load(CHART) as loaded:
        files = loaded.render(yaml.safe_load(values.read_text()) or {}, name="plumage", namespace="plumage-system")
    objects = Rendered(files).objects
    assert objects
    # The chart omits the policy below 1.30, but Helm's library renders for one version only.
    older = tuple(map(int, version.split("."))) < (1, 30)
    served = [one for one in objects if not (older and one["kind"].startswith("ValidatingAdmissionPolicy"))]
    assert list(_mistakes(served, version)) == []


def test_validation_finds_an_unknown_field(version: str) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    assert list(_mistakes([service], version)) != []
