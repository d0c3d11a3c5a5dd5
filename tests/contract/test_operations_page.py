"""What the operator says has a line for the person on call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from plumage.api.v1alpha1 import parse_manifest
from plumage.autoscaling.decision import Reason as ScalingReason
from plumage_operator.conditions import Reason, Type

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operations.md", "install.md", "autoscaling.md", "crds.md")


def words(page: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", (DOCS / page).read_text()))


def test_every_condition_and_every_reason_is_explained() -> None:
    told = words("operations.md")
    assert {str(type_) for type_ in Type} - told == set()
    assert {str(reason) for reason in Reason} - told == set()
    shown = set(get_args(ScalingReason)) - {
        "AtMaximum",
        "AtMinimum",
        "Stabilized",
        "RateLimited",
    }  # AtTarget stands for
    assert shown - words("autoscaling.md") == set()


def test_every_event_is_explained() -> None:
    source = "".join(path.read_text() for path in (DOCS.parent / "operator").rglob("*.py"))
    told = set(re.findall(r'Tell\("\w+", "(\w+)"', source))
    assert "ChildRepaired" in told
    assert told - words("operations.md") == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", (DOCS / page).read_text())
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_pool_on_the_install_page_is_right() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "install.md").read_text(), re.DOTALL)
    assert parse_manifest(yaml.safe_load(text), "install.md").metadata.name == "qwen"
