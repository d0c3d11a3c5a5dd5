"""A pool that is recreated while children of its deleted namesake still exist."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import World, pool_object

from plumage.cluster import PAUSE
from plumage_operator.controller.actions import EmitEvent, WriteStatus
from plumage_operator.observed import ScalingDecision

BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
AUTOSCALED = {**BASE, "autoscaling": {"minReplicas": 1, "maxReplicas": 9}}


def recreated(spec: dict[str, Any], **metadata: Any) -> World:
    """After a pool that was scaled to seven and serves."""
    world = World(pool_object(AUTOSCALED))
    world.scaling = ScalingDecision(7, "True", "ScaledUp", "7 are needed")
    world.converge()
    world.events.clear()
    world.scaling, world.pool = None, pool_object(spec, uid="another-uid", **metadata)
    world.do(action for action in world.plan() if isinstance(action, WriteStatus | EmitEvent))  # children are refused
    return world


def collect(world: World) -> None:
    world.objects.clear()
    world.known.clear()
    world.pods.clear()
    world.converge()


@pytest.mark.parametrize("annotations", [{}, {PAUSE: "true"}], ids=["going", "paused"])
def test_recreated_pool_begins_with_its_own_size(annotations: dict[str, str]) -> None:
    world = recreated(AUTOSCALED, annotations=annotations)
    assert world.pool["status"]["desiredReplicas"] == 1
    world.pool["metadata"]["annotations"] = {}
    collect(world)
    assert world.objects["Deployment", "chat-engine"]["spec"]["replicas"] == 1
    assert world.pool["status"]["desiredReplicas"] == 1


def test_replicas_of_an_earlier_pool_do_not_count() -> None:
    world = recreated({**BASE, "replicas": 7})
    status = world.pool["status"]
    assert (status["replicas"], status["readyReplicas"], "provenReplicas" in status) == (0, 0, False)
    assert {name: world.reasons()[name] for name in ("EngineReady", "RouterReady")} == {
        "EngineReady": ("False", "Starting"),
        "RouterReady": ("False", "Starting"),
    }
    assert "Serving" not in [one.reason for one in world.events]
