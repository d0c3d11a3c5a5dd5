"""The engine's environment: the user's variables beside the operator's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.api.v1alpha1.pods import OWNED_ENV
from plumage.errors import ManifestError
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import read_pool

TOKEN = {"name": "hub", "key": "token"}
SPECS: list[dict[str, Any]] = [
    {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}},
    {"model": {"uri": "hf://org/model", "tokenRef": TOKEN}, "engine": {}},
    {
        "model": {"uri": "builtin://tiny-llama"},
        "engine": {"hostMemory": {"capacity": "1Gi"}},
        "tracing": {"endpoint": "http://collector:4318"},
    },
]


def environments(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Of each container in an engine's pod, the engine's own last."""
    context = PoolContext(read_pool(pool_object(spec)), CONFIG, 1)
    (made,) = (
        one for one in build_children(context) if one["kind"] == "Deployment" and "engine" in one["metadata"]["name"]
    )
    inside = made["spec"]["template"]["spec"]
    return [one.get("env", []) for one in (*inside["initContainers"], *inside["containers"])]


def names(spec: dict[str, Any]) -> set[str]:
    """Variables that the operator sets in the engine's container."""
    return {one["name"] for one in environments(spec)[-1]}


def with_variable(spec: dict[str, Any], name: str) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(spec))
    changed["engine"]["env"] = [{"name": name, "value": "theirs"}]
    return changed


@pytest.mark.parametrize(
    ("spec", "name"),
    [(spec, name) for spec in SPECS for name in sorted(names(spec) - {*OWNED_ENV, "VLLM_PLUGINS"})],
)
def test_variable_of_the_user_replaces_a_default(spec: dict[str, Any], name: str) -> None:
    made = environments(with_variable(spec, name))
    for environment in made:
        assert len({one["name"] for one in environment}) == len(environment)
    assert {"name": name, "value": "theirs"} in made[-1]


def test_variable_that_is_no_default_is_refused() -> None:
    set_by_us = {name for spec in SPECS for name in names(spec)}
    assert set(OWNED_ENV) <= set_by_us
    for spec in SPECS:
        for name in (*OWNED_ENV, "VLLM_PLUGINS"):
            with pytest.raises(ManifestError, match=name):
                environments(with_variable(spec, name))
