"""What the sample values render to, line by line. After a change, review the difference and write new snapshots:

UPDATE_SNAPSHOTS=1 pytest tests/contract/chart/test_snapshots.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "snapshots"
LONG = ("CustomResourceDefinition",)  # compared with crds/ elsewhere


def test_rendered_chart_equals_its_snapshot(render: Any, case: tuple[str, dict[str, Any]]) -> None:
    name, values = case
    rendered = [_without_copied_files(one) for one in render(values).objects if one["kind"] not in LONG]
    text = yaml.safe_dump_all(rendered, sort_keys=True, width=120, allow_unicode=True)
    path = FOLDER / f"{name}.yaml"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert path.exists(), f"UPDATE_SNAPSHOTS=1 writes {path.name}; review it then"
    assert text == path.read_text()


def _without_copied_files(one: dict[str, Any]) -> dict[str, Any]:
    """The object without the data that has a file of its own."""
    if "plumage.json" in one.get("data", {}):
        return {**one, "data": {"plumage.json": "files/dashboard.json"}}
    if one["kind"] == "PrometheusRule":
        return {**one, "spec": "files/alerts.yaml"}
    return one
