"""The operator and the chart list the same optional kinds, and a pool's optional children follow its spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operator_world import CONFIG, pool_object

from plumage_operator.kinds import INTEGRATIONS, KINDS, Integration
from plumage_operator.observed import key_of
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import read_pool

VALUES = Path(__file__).parents[3] / "charts" / "plumage" / "values.yaml"
BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"router": {"replicas": 1}},
    {"router": {"ingress": {"host": "chat.example"}}},
    {"router": {"httpRoute": {"parentRefs": [{"name": "edge"}]}}},
    {"router": {"endpointPicker": {}}},
    {"router": {"endpointPicker": {"inferencePool": {"failureMode": "FailClose"}}}},
    {"monitoring": {"enabled": True}},
    {"monitoring": {"enabled": False, "labels": {"release": "prometheus"}}},
    {"router": {"gatewayRef": {"name": "front"}}, "monitoring": {"enabled": True}},
)


def test_each_kind_has_a_switch_and_each_switch_a_kind() -> None:
    switches = yaml.safe_load(VALUES.read_text())["integrations"]
    assert {one.switch for one in INTEGRATIONS} == set(switches)
    for one in INTEGRATIONS:
        assert KINDS[one.kind] == (f"{one.group}/{one.version}", one.plural)
        named = f"{one.plural}.{one.group}" if one.plural == "inferencepools" else one.plural
        assert one.resource == named, "Plumage has a resource of that name"


@pytest.mark.parametrize("integration", INTEGRATIONS, ids=lambda one: one.kind)
def test_pool_asks_for_the_kinds_of_its_children(integration: Integration) -> None:
    answers = set()
    for spec in SPECS:
        pool = read_pool(pool_object({**BASE, **spec}))
        made = {key_of(child)[0] for child in build_children(PoolContext(pool, CONFIG, 2))}
        asked = integration.requested_by({**BASE, **spec})
        assert asked is (integration.kind in made), spec
        answers.add(asked)
    assert answers == {True, False}
