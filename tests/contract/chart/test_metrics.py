"""Alerts and the dashboard query metrics that exist, of the components that export them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml
from support.charts import CHART, ROOT
from support.operator_world import CONFIG, pool_object

from plumage_operator.resources import PoolContext
from plumage_operator.resources.context import read_pool
from plumage_operator.resources.pod_monitor import build_monitor

OURS = re.compile(r"\b(plumage_(?:router|agent|operator|engine)_[a-z_]+|vllm:[a-z_]+)")
FORMS = ("_bucket", "_sum", "_count")
REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
"""Written from the pages of running components; tests/e2e/test_metrics_pages.py finds it out of date."""
OF_TARGETS = {"namespace", "pool", "pod", "job", "le"}
"""Labels that the monitors add, and that of buckets."""


def test_queried_metrics_exist() -> None:
    asked = {name for expression in _expressions() for name in OURS.findall(expression)}
    assert len(asked) > 20
    assert [name for name in sorted(asked) if not _exported(name)] == []


def test_labels_of_queries_exist() -> None:
    grouped = 0
    for expression in _expressions():
        metrics = [_family(name) for name in OURS.findall(expression)]
        known = OF_TARGETS.union(*(_reference()[name] for name in metrics if name in _reference()))
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            asked |= set(labels.split(", "))
        grouped += len(asked)
        assert asked - known == set(), expression
    assert grouped > 50


def test_observe_page_names_existing_metrics_and_every_alert() -> None:
    page = (ROOT / "docs" / "how-to" / "observe.md").read_text()
    asked = set(OURS.findall(page))
    assert len(asked) > 20
    assert [name for name in sorted(asked) if not _exported(name)] == []
    assert {rule["alert"] for rule in _rules()} - set(re.findall(r"`(Plumage\w+)`", page)) == set()


def test_removed_metric_is_found() -> None:
    assert _exported("plumage_router_requests_total")
    assert not _exported("plumage_router_requests_gone_total")


def test_alerts_have_severity_summary_and_runbook() -> None:
    for rule in _rules():
        assert re.fullmatch(r"Plumage[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        by = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"] + rule["annotations"]["description"]))
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
        assert by <= grouped, rule["alert"]


def test_chart_rules_equal_the_rules_file(render: Any) -> None:
    """Their braces are Prometheus', not Helm's. The job is the name of the Service."""
    values = {"monitoring": {"prometheusRule": {"enabled": True}}, "fullnameOverride": "fleet"}
    spec = render(values).one("PrometheusRule")["spec"]
    written = yaml.safe_load(
        (CHART / "files" / "alerts.yaml").read_text().replace('plumage-operator"}', 'fleet-operator"}')
    )
    assert spec == written


def test_pool_monitor_labels_equal_those_of_the_chart(render: Any) -> None:
    """Alerts and the dashboard group by these labels."""
    values = {"monitoring": {"podMonitor": {"enabled": True}}}
    ours = {end["port"]: end["relabelings"] for end in render(values).one("PodMonitor")["spec"]["podMetricsEndpoints"]}
    spec = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
    context = PoolContext(read_pool(pool_object(spec)), CONFIG, 2)
    for part in ("engine", "router"):
        for endpoint in build_monitor(context, part)["spec"]["podMetricsEndpoints"]:
            labels = [one for one in ours[endpoint["port"]] if "targetLabel" in one]  # the chart also drops some pods
            assert endpoint["relabelings"] == labels


def test_dashboard_panels_do_not_overlap() -> None:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    covered = [spot for panel in board["panels"] for spot in _spots(panel["gridPos"])]
    assert len(covered) == len(set(covered))
    assert all(panel["description"] and panel["targets"] for panel in board["panels"])


def test_chart_dashboard_equals_the_dashboard_file(render: Any) -> None:
    data = render({"monitoring": {"dashboard": {"enabled": True}}}).one("ConfigMap")["data"]
    assert json.loads(data["plumage.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())


def _spots(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in _rules())
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def _exported(name: str) -> bool:
    return _family(name) in _reference()


def _family(name: str) -> str:
    """The name as the reference has it."""
    form = next((form for form in FORMS if name.endswith(form) and name not in _reference()), "")
    return name.removesuffix(form)


@cache
def _reference() -> dict[str, frozenset[str]]:
    """The labels of each metric."""
    rows = re.findall(r"^\| `([a-z_:]+)` \| \w+ \| ([^|]*) \|", REFERENCE.read_text(), re.MULTILINE)
    return {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
