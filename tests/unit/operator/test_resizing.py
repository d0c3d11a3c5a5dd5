"""Ready while a pool changes its size: the replicas that served before count, until more were ready."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import World, pool_object

from plumage_operator.controller.actions import Apply, WriteStatus

UNKNOWN_IMAGE = {"reason": "ErrImagePull", "message": "not found"}


def serving(replicas: int, rollout: dict[str, Any] | None = None) -> World:
    spec = {**pool_object()["spec"], "replicas": replicas, **({"rollout": rollout} if rollout else {})}
    world = World(pool_object(spec))
    world.converge()
    return world


def ask_for(world: World, replicas: int) -> None:
    """As `kubectl scale` does: the operator has changed the Deployment, whose controller has observed nothing yet."""
    world.pool["spec"]["replicas"] = replicas
    world.pool["metadata"]["generation"] += 1
    world.do(world.plan())


def is_ready(world: World, ready: int, total: int | None = None) -> tuple[str, str]:
    """Whether the pool is ready with so many ready replicas, by default of all wanted ones.

    Each reconcile begins from the status alone, as that of a new operator, and a second one changes nothing.
    """
    deployment = world.objects["Deployment", "chat-engine"]
    there = deployment["spec"]["replicas"] if total is None else total
    seen = {"observedGeneration": deployment["metadata"]["generation"]}
    deployment["status"] = {**seen, "replicas": there, "updatedReplicas": there, "readyReplicas": ready}
    actions = world.plan()
    assert not [action for action in actions if isinstance(action, Apply)]
    assert len([action for action in actions if isinstance(action, WriteStatus)]) <= 1
    world.do(actions)
    assert world.plan() == ()
    assert world.reasons()["EngineReady"] == world.reasons()["Ready"]
    return world.reasons()["Ready"]


def test_serving_pool_is_ready_while_it_grows() -> None:
    world = serving(2)
    ask_for(world, 8)
    assert world.reasons()["Ready"] == ("True", "Serving")
    for ready in (2, 3, 7):
        assert is_ready(world, ready) == ("True", "Serving")
        assert world.reasons()["Progressing"] == ("True", "Resizing")
        assert world.condition("Ready")["message"] == f"{ready} of 8 replicas are ready; the others are starting"
    assert is_ready(world, 8) == ("True", "Serving")
    assert world.reasons()["Progressing"] == ("False", "Settled")
    assert {one.reason for one in world.events if one.reason in ("Starting", "Warming")} == {"Starting"}
    assert [one.reason for one in world.events].count("Starting") == 1  # when it was made


def test_growing_pool_that_breaks_is_not_ready() -> None:
    world = serving(4)
    ask_for(world, 8)
    assert is_ready(world, 3) == ("True", "Serving")
    assert is_ready(world, 2) == ("False", "Starting")
    assert is_ready(world, 3) == ("False", "Starting")
    assert is_ready(world, 4) == ("True", "Serving")  # the others continue to load


def test_loss_of_the_last_replica_is_reported() -> None:
    world = serving(1)
    ask_for(world, 3)
    assert is_ready(world, 1) == ("True", "Serving")
    assert is_ready(world, 0) == ("False", "Starting")
    assert is_ready(world, 1) == ("True", "Serving")


def test_new_replicas_count_once_they_were_ready() -> None:
    world = serving(2)
    ask_for(world, 8)
    assert is_ready(world, 7) == ("True", "Serving")
    assert is_ready(world, 6) == ("True", "Serving")
    assert is_ready(world, 5) == ("False", "Starting")


def test_new_replicas_that_cannot_start_only_degrade_the_pool() -> None:
    world = serving(2)
    ask_for(world, 4)
    template = world.objects["Deployment", "chat-engine"]["spec"]["template"]
    world.add_pod("chat-engine-9", template, ready=False)
    stuck = {"name": "engine", "image": "engine:1", "ready": False, "state": {"waiting": UNKNOWN_IMAGE}}
    world.pods["chat-engine-9"]["status"]["containerStatuses"] = [stuck]
    assert is_ready(world, 2) == ("True", "Degraded")
    assert "2 of 4 replicas are ready. chat-engine-9 can't pull image" in world.condition("Ready")["message"]


@pytest.mark.parametrize("wanted", [3, 9])
def test_pool_that_never_served_waits_for_all_replicas_at_any_size(wanted: int) -> None:
    world = World(pool_object({**pool_object()["spec"], "replicas": 4}))
    world.do(world.plan())
    world.run_controllers()
    assert is_ready(world, 2) == ("False", "Starting")
    ask_for(world, wanted)
    assert is_ready(world, 2) == ("False", "Starting")
    assert is_ready(world, wanted - 1) == ("False", "Starting")
    assert is_ready(world, wanted) == ("True", "Serving")


def test_shrinking_pool_needs_its_remaining_replicas() -> None:
    world = serving(4)
    ask_for(world, 2)
    assert is_ready(world, 4, total=4) == ("True", "Serving")
    assert is_ready(world, 2) == ("True", "Serving")
    ask_for(world, 4)
    assert is_ready(world, 2) == ("True", "Serving")
    assert is_ready(world, 1) == ("True", "Serving")
    assert is_ready(world, 0) == ("False", "Starting")


def test_pool_that_is_not_ready_may_shrink_to_its_ready_replicas() -> None:
    world = serving(6)
    assert is_ready(world, 2) == ("False", "Starting")
    ask_for(world, 3)
    assert is_ready(world, 2) == ("False", "Starting")
    ask_for(world, 2)
    assert is_ready(world, 2) == ("True", "Serving")


def test_waking_pool_is_ready_once_all_wanted_replicas_are() -> None:
    world = serving(3, rollout={"maxUnavailable": 2})
    ask_for(world, 0)
    assert is_ready(world, 0) == ("True", "ScaledToZero")
    ask_for(world, 3)
    for ready in (0, 1, 2):
        assert is_ready(world, ready) == ("False", "Starting")
    assert is_ready(world, 3) == ("True", "Serving")


@pytest.mark.parametrize(("unavailable", "least"), [(0, 3), (2, 2), ("50%", 2), ("75%", 1)])
def test_rollout_may_take_max_unavailable_replicas(unavailable: int | str, least: int) -> None:
    world = serving(4, rollout={"maxUnavailable": unavailable})
    ask_for(world, 8)
    assert is_ready(world, least) == ("True", "Serving")
    assert is_ready(world, least - 1) == ("False", "Starting")


def test_surge_of_a_rollout_counts_only_up_to_the_wanted_replicas() -> None:
    world = serving(4)
    assert is_ready(world, 5, total=5) == ("True", "Serving")
    assert is_ready(world, 3) == ("True", "Serving")


def test_unchanging_pool_stores_no_proven_replicas() -> None:
    """Its size implies the number, so an earlier status needs no write, and an older definition knows every field."""
    world = serving(2)
    assert "provenReplicas" not in world.pool["status"]
    ask_for(world, 3)
    assert world.pool["status"]["provenReplicas"] == 2
    assert is_ready(world, 3) == ("True", "Serving")
    assert "provenReplicas" not in world.pool["status"]
    assert is_ready(world, 0) == ("False", "Starting")
    assert world.pool["status"]["provenReplicas"] == 3
