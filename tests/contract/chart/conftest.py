"""The chart, loaded once. Helm's own library renders it: no helm program and no cluster is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.charts import CHART, Rendered
from support.needs import module


@pytest.fixture(scope="session")
def helm() -> Any:
    return module("helm_python")


@pytest.fixture(scope="session")
def chart(helm: Any) -> Iterator[Any]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture
def render(chart: Any) -> Any:
    """The objects that these values render to, as the API server would get them."""

    def rendered(values: Mapping[str, Any] | None = None, **release: Any) -> Rendered:
        options = {"name": "plumage", "namespace": "plumage-system", **release}
        return Rendered(chart.render(dict(values or {}), **options))

    return rendered


@pytest.fixture(params=["default", "everything", "external-metrics", "namespaced"])
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each of the chart's sample values, by its name."""
    path = Path(CHART) / "ci" / f"{request.param}-values.yaml"
    return request.param, yaml.safe_load(path.read_text())
