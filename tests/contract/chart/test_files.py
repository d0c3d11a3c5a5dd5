"""The chart as files: lint, copied and generated files, the documentation of each value, and the
index's annotations.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import yaml
from support.charts import CHART, ROOT


def test_lint_reports_nothing(helm: Any, case: tuple[str, dict[str, Any]]) -> None:
    report = helm.lint(CHART, case[1], strict=True, namespace="plumage-system")
    worse_than_info = [one for one in report["messages"] if one["severity"] > 1]
    assert (report["errors"], worse_than_info) == ([], [])


def test_copied_and_generated_files_are_current() -> None:
    """CRDs, the operator's rights, the README's tables."""
    script = [sys.executable, str(ROOT / "scripts" / "make_chart.py"), "--check"]
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_crd_template_renders_the_crd(render: Any) -> None:
    rendered = {one["metadata"]["name"]: one for one in render().of("CustomResourceDefinition")}
    written = {one["metadata"]["name"]: one for one in map(_yaml, sorted((ROOT / "crds").glob("*.yaml")))}
    assert {name: one["spec"] for name, one in rendered.items()} == {name: one["spec"] for name, one in written.items()}
    assert all(one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for one in rendered.values())
    assert len(written) == 2


def test_crds_are_deleted_with_the_release_only_on_request(render: Any) -> None:
    for one in render({"crds": {"keep": False}}).of("CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in one["metadata"].get("annotations", {})
    assert render({"crds": {"enabled": False}}).of("CustomResourceDefinition") == []


def test_braces_in_a_description_are_not_template_actions(helm: Any, tmp_path: Any) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from make_chart import crd
    finally:
        sys.path.pop(0)
    spec = {"text": "a {{ .Values.x }} and }} or {{{ there"}
    made = {"apiVersion": "v1", "kind": "Made", "metadata": {"name": "x"}, "spec": spec}
    text = crd(yaml.safe_dump(made, sort_keys=False))
    folder = tmp_path / "one"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: one\nversion: 0.1.0\n")
    (folder / "values.yaml").write_text("crds: {enabled: true, keep: true}\n")
    (folder / "templates" / "_helpers.tpl").write_text('{{ define "plumage.labels" }}a: b{{ end }}')
    (folder / "templates" / "one.yaml").write_text(text)
    with helm.Chart.load(folder) as one:
        again = yaml.safe_load(one.render()["one/templates/one.yaml"])
    assert again["spec"] == spec
    assert again["metadata"] == {"name": "x", "annotations": {"helm.sh/resource-policy": "keep"}, "labels": {"a": "b"}}


def test_each_value_has_a_description_and_a_schema() -> None:
    """values.yaml, its comments and the schema name the same keys."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = _yaml(CHART / "values.yaml")
    assert set(_leaves(values)) == set(_schema_leaves(schema)) - {("global",)}
    readme = (CHART / "README.md").read_text()
    documented = {tuple(path.split(".")) for path in re.findall(r"^\| `([A-Za-z.]+)` \|", readme, re.MULTILINE)}
    # The description of a map covers its keys.
    undocumented = [
        path for path in _leaves(values) if not any(path[:n] in documented for n in range(len(path), len(path) - 3, -1))
    ]
    assert undocumented == []


def test_own_maps_refuse_unknown_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert list(_open_maps(schema, ())) == []


def test_index_annotations_parse() -> None:
    """Artifact Hub's annotations are YAML and list the kinds of the CRDs."""
    chart = _yaml(CHART / "Chart.yaml")
    shown = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    crds = {one["metadata"]["name"]: one["spec"] for one in map(_yaml, (ROOT / "crds").glob("*.yaml"))}
    assert {one["name"]: one["kind"] for one in shown} == {name: spec["names"]["kind"] for name, spec in crds.items()}
    assert {one["version"] for one in shown} == {"v1alpha1"}
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert chart["appVersion"] == version[1]


def test_index_sample_is_a_valid_pool() -> None:
    from plumage.api.v1alpha1 import InferencePool

    for example in yaml.safe_load(_yaml(CHART / "Chart.yaml")["annotations"]["artifacthub.io/crdsExamples"]):
        assert InferencePool.model_validate(example).spec.replicas == 2


def _yaml(path: Any) -> Any:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(values, dict) or not values or path[-1:] in {("labels",), ("requests",), ("limits",)}:
        yield path
        return
    for name, value in values.items():
        yield from _leaves(value, (*path, name))


def _schema_leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if "properties" not in schema:
        yield path
        return
    for name, field in schema["properties"].items():
        if (*path, name) != ("operator", "resources", "claims"):
            yield from _schema_leaves(field, (*path, name))


def _open_maps(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if "properties" in schema and schema.get("additionalProperties") is not False:
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from _open_maps(field, (*path, name))
