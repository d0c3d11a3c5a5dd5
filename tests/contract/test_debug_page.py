"""Every condition, reason and event of the operator has a line on the page for the person on call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import yaml
from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import parse_manifest
from plumage.api.v1alpha1.pool import InferencePoolSpec
from plumage.api.v1alpha1.router import RouterSpec
from plumage.autoscaling.autoscaler import Reason as ScalingReason
from plumage.cluster import LIVE_ROUTER_SETTINGS
from plumage_operator.status.conditions import Reason, Type

DOCS = Path(__file__).parents[2] / "docs"


def backquoted(page: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", (DOCS / page).read_text()))


def test_every_condition_and_every_reason_is_explained() -> None:
    explained = backquoted("how-to/debug.md")
    assert {str(type_) for type_ in Type} - explained == set()
    assert {str(reason) for reason in Reason} - explained == set()
    shown = set(get_args(ScalingReason)) - {
        "AtMaximum",
        "AtMinimum",
        "Stabilized",
        "RateLimited",
    }  # AtTarget stands for
    assert shown - backquoted("how-to/autoscale.md") == set()


def test_every_event_is_explained() -> None:
    source = "".join(path.read_text() for path in (DOCS.parent / "operator").rglob("*.py"))
    events = set(re.findall(r'EmitEvent\("\w+", "(\w+)"', source))
    assert "ChildRepaired" in events
    assert events - backquoted("how-to/debug.md") == set()


def test_pools_on_the_install_page_are_valid() -> None:
    """A part of a manifest is read as one of a minimal pool."""
    found = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to" / "install.md").read_text(), re.DOTALL)
    pool = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "part"}}
    names = []
    for text in found:
        manifest = yaml.safe_load(text)
        if "kind" not in manifest:
            manifest = {**pool, "spec": {"model": {"uri": "builtin://tiny-llama"}, **manifest["spec"]}}
        names.append(parse_manifest(manifest, "install.md").metadata.name)
    assert names == ["part", "part", "qwen"]


def test_settings_that_need_no_restart_are_fields_of_the_manifest() -> None:
    """`hold`, `breaker` and `quarantine` are in a router's own file only."""
    page = (DOCS / "how-to" / "upgrade.md").read_text()
    (sentence,) = re.findall(r"Running routers follow\nchanges of (.*?)\. ", page, re.DOTALL)
    fields = {*RouterSpec.model_fields, *InferencePoolSpec.model_fields}
    live = {to_camel(name) for name in LIVE_ROUTER_SETTINGS if name in fields}
    assert {name.removeprefix("router.") for name in re.findall(r"`([\w.]+)`", sentence)} == live | {"lbgr"}
