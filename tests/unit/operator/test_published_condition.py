"""The condition Published repeats what Gateways say of the published InferencePool."""

from __future__ import annotations

from typing import Any

from support.operator_world import World, pool_object

PUBLISHED = ("InferencePool.inference.networking.k8s.io", "chat")


def world(**picker: Any) -> World:
    spec = {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator"},
        "router": {"endpointPicker": {"proxyNamespaces": ["edge"], **picker}},
    }
    made = World(pool_object({**spec, "replicas": 2}))
    made.converge()
    return made


def says(type_: str, status: str, reason: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message, **more}


def parent(name: str, *conditions: dict[str, Any], **reference: str) -> dict[str, Any]:
    return {"parentRef": {"kind": "Gateway", "name": name, **reference}, "conditions": list(conditions)}


def condition(world: World, *parents: dict[str, Any]) -> tuple[str, str, str]:
    """Status, reason and message after these parents answered."""
    world.objects[PUBLISHED]["status"] = {"parents": list(parents)}
    world.converge()
    found = world.condition("Published")
    return found["status"], found["reason"], found["message"]


def test_pool_that_publishes_nothing_has_no_such_condition() -> None:
    pool = world()
    assert "Published" not in pool.reasons()
    assert PUBLISHED not in pool.objects


def test_condition_follows_the_parents() -> None:
    pool = world(inferencePool={})
    status, reason, message = condition(pool)
    assert (status, reason) == ("Unknown", "NoParent")
    assert "name it in backendRefs of an HTTPRoute" in message
    assert condition(pool, parent("edge", says("Accepted", "Unknown", "Pending")))[:2] == ("Unknown", "NoParent")
    accepted = parent("edge", says("Accepted", "True"), says("ResolvedRefs", "True"), namespace="gateways")
    assert condition(pool, accepted) == ("True", "ParentsAccepted", "accepted by Gateway gateways/edge")
    lost = says("ResolvedRefs", "False", "InvalidExtensionRef", "no Service chat-picker")
    assert condition(pool, accepted, parent("second", says("Accepted", "True"), lost)) == (
        "False",
        "ParentRefused",
        "Gateway second: ResolvedRefs is False, InvalidExtensionRef: no Service chat-picker",
    )
    refused = says("Accepted", "False", "HTTPRouteNotAccepted", "see the route")
    assert condition(pool, accepted, parent("second", refused))[:2] == ("False", "ParentRefused")
    assert pool.reasons()["Ready"] == ("True", "Serving"), "clients of the router need no Gateway"


def test_answer_about_an_earlier_spec_does_not_count() -> None:
    pool = world(inferencePool={})
    pool.objects[PUBLISHED]["metadata"]["generation"] = 3
    old = says("Accepted", "True", observedGeneration=2)
    assert condition(pool, parent("edge", old))[:2] == ("Unknown", "NoParent")
    assert condition(pool, parent("edge", {**old, "observedGeneration": 3}))[:2] == ("True", "ParentsAccepted")


def test_missing_object_is_reported() -> None:
    pool = world(inferencePool={})
    del pool.objects[PUBLISHED]
    found = next(action for action in pool.plan() if hasattr(action, "status")).status["conditions"]
    (published,) = [one for one in found if one["type"] == "Published"]
    assert (published["status"], published["reason"]) == ("False", "NotPublished")


def test_field_that_nobody_can_use_is_named() -> None:
    without = world(proxyNamespaces=[], inferencePool={})
    assert "proxyNamespaces is empty" in without.condition("Accepted")["message"]
    assert world(inferencePool={}).condition("Accepted")["message"] == ""
