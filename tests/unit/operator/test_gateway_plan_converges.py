"""An interrupted plan of a gateway is made again by the next operator, and ends in the same state."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.gateway_world import Gateway, attached, model
from support.operator_world import CONFIG, NOW

from plumage_operator.config import OperatorConfig
from plumage_operator.controller.actions import Action, Annotate, Apply, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.gateway_plan import CONFIG_SEEN, plan_gateway_changes, plan_gateway_status

CLAIM = {"uri": "pvc://claim/model"}

GATEWAYS: dict[str, Callable[[], Gateway]] = {
    "one pool": lambda: Gateway(attached("chat"), models=[model("chat", "chat")]),
    "two pools": lambda: Gateway(attached("chat"), attached("code", born=1), replicas=3),
    "a volume and keys": lambda: Gateway(
        attached("chat", **CLAIM),
        auth={"apiKeysRef": {"name": "keys", "key": "k"}},
        listeners=[{"name": "http", "port": 80}],
    ),
    "two pools of one name": lambda: Gateway(
        attached("old", born=1), attached("young", born=9), models=[model("chat", "young", "old")]
    ),
    "a pool that is not there": lambda: Gateway(attached("chat"), models=[model("x", "chat"), model("y", "gone")]),
    "no pool": lambda: Gateway(models=[model("chat", "chat")]),
}
CONFIGS = {"one pool": replace(CONFIG, network_policies=False)}
WAYS: list[tuple[str | None, str]] = [*((None, after) for after in GATEWAYS), *itertools.permutations(GATEWAYS, 2)]


def in_transition(before: str | None, after: str) -> Gateway:
    """A gateway with that spec and its present objects: none, or those of the previous spec."""
    world = GATEWAYS[after]()
    if before is None:
        return world
    settled = GATEWAYS[before]()
    settled.converge(CONFIGS.get(before, CONFIG))
    settled.pool["spec"] = world.pool["spec"]
    settled.pool["metadata"]["generation"] = 2
    settled.pools = world.pools
    return settled


def steps(world: Gateway, config: OperatorConfig) -> Iterator[Action]:
    """Every action until none is left, each after it was performed."""
    for _ in range(10):
        world.run_controllers()
        count = 0
        for action in _reconcile(world, config):
            count += 1
            world.do([action])
            yield action
        if not count:
            return
    raise AssertionError(f"still {world.plan(config)} after 10 looks")


def _reconcile(world: Gateway, config: OperatorConfig) -> Iterator[Action]:
    """A status describes the cluster after the changes."""
    yield from plan_gateway_changes(world.seen(), config)
    yield from plan_gateway_status(world.seen(), config, NOW)


def shape(world: Gateway) -> dict[str, Any]:
    """What must be equal for every path to this state."""
    status = {name: value for name, value in world.pool["status"].items() if name != "conditions"}
    conditions = {
        one["type"]: (one["status"], one["reason"], one["message"]) for one in world.pool["status"]["conditions"]
    }
    children = {key: {part: thing[part] for part in thing if part not in ("metadata", "status")} | {
        "labels": thing["metadata"]["labels"], "annotations": thing["metadata"]["annotations"],
    } for key, thing in world.objects.items()}  # fmt: skip
    seen = {name: pod["metadata"]["annotations"][CONFIG_SEEN] for name, pod in world.pods.items()}
    return {"children": children, "status": status, "conditions": conditions, "seen": seen}


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_crash_after_any_action_converges(before: str | None, after: str) -> None:
    config, whole = CONFIGS.get(after, CONFIG), in_transition(before, after)
    crashed = [copy.deepcopy(whole) for _ in steps(whole, config)]  # after each action
    for cut, world in enumerate(crashed[:-1], 1):
        world.known.clear()  # the next operator has observed nothing yet
        before_crash = len(world.events)
        world.converge(config)
        assert shape(world) == shape(whole), cut
        assert {one.reason for one in world.events[before_crash:]}.isdisjoint({"ChildRecreated", "ChildRepaired"}), cut


@pytest.mark.parametrize("after", GATEWAYS)
def test_any_previous_state_ends_the_same(after: str) -> None:
    fresh, config = GATEWAYS[after](), CONFIGS.get(after, CONFIG)
    fresh.converge(config)
    for before in [name for name in GATEWAYS if name != after]:
        world = in_transition(before, after)
        world.converge(config)
        wanted = shape(fresh)
        wanted["status"]["observedGeneration"] = 2
        assert shape(world) == wanted, before


def test_actions_of_every_kind_are_interrupted() -> None:
    kinds = {type(action) for way in WAYS for action in steps(in_transition(*way), CONFIGS.get(way[1], CONFIG))}
    assert kinds == {Annotate, Apply, Delete, EmitEvent, WriteStatus}
