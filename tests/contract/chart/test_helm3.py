"""Helm 3 renders the chart too: it uses only functions that Helm 3.14 has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from support.charts import CHART

GO = {"and", "or", "not", "eq", "ne", "gt", "lt", "ge", "le", "index", "len", "print", "printf", "println"}
KEYWORDS = {"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue", "nil"}
# Functions of Sprig 3.2 (in Helm 3.14) that the chart may use, and Helm 3's own.
SPRIG = {
    "append", "b64enc", "contains", "default", "dict", "dig", "fail", "first", "genCA", "genSignedCert", "get",
    "indent", "int", "join", "list", "merge", "nindent", "quote", "replace", "semverCompare", "ternary", "toJson",
    "trimSuffix", "trunc",
}  # fmt: skip
HELM = {"include", "lookup", "required", "toYaml", "tpl"}
KNOWN = GO | KEYWORDS | SPRIG | HELM | {"true", "false"}


def test_templates_use_functions_of_helm_3() -> None:
    used = {word for path in CHART.glob("templates/**/*") if path.is_file() for word in _words(path.read_text())}
    assert used - KNOWN == set()
    assert {"include", "toYaml", "lookup"} <= used  # the pattern finds functions at all


def test_chart_format_is_read_by_helm_3_and_4() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2"
    assert set(chart) <= {
        "apiVersion", "name", "description", "type", "version", "appVersion", "kubeVersion", "keywords", "maintainers",
        "annotations", "home", "sources", "icon", "dependencies",
    }  # fmt: skip
    assert not (CHART / "crds").exists()  # Helm never upgrades those


def _words(text: str) -> Iterator[str]:
    """Names of functions and keywords in the actions of a template."""
    for action in re.findall(r"\{\{-?(.*?)-?\}\}", text, re.DOTALL):
        if action.strip().startswith("/*"):
            continue
        bare = re.sub(r'"(?:\\.|[^"\\])*"|`[^`]*`', " ", action)
        yield from re.findall(r"(?<![\w.$])[a-zA-Z]\w*", bare)
