"""Prometheus' own checker accepts every metrics page of a pool, and the reference lists what the pages have."""

from __future__ import annotations

import re
from collections.abc import Mapping

import make_metrics_reference as reference
import pytest
from support.scrapes import lint

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


VLLMS_OWN = re.compile(r"vllm:\S+ metric names should not contain ':'")  # the simulator has vLLM's names


@pytest.fixture(scope="module")
def pages() -> Mapping[str, str]:
    """Of the router, the agent and the engine of one pool, after some requests."""
    return reference.of_a_pool()


@pytest.mark.parametrize("part", ["Router", "Agent", "Engine: the simulator"])
def test_promtool_accepts_every_page(pages: Mapping[str, str], part: str) -> None:
    assert [one for one in lint(pages[part]) if not VLLMS_OWN.fullmatch(one)] == []


def test_reference_lists_the_metrics_of_each_page(pages: Mapping[str, str]) -> None:
    assert reference.PAGE.read_text() == reference.text_of(pages), "make docs-pages"


def test_reference_has_the_labels_of_families_without_samples(pages: Mapping[str, str]) -> None:
    """No request of that pool is retried."""
    assert "| `plumage_router_retries_total` | counter | `reason` |" in reference.text_of(pages)
