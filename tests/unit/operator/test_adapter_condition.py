"""The condition AdaptersReady, its events, and the adapters of a pool's status."""

from __future__ import annotations

from typing import Any

from support.operator_world import World, pool_object

from plumage_operator.observed import ScalingDecision

MODEL = {
    "uri": "builtin://tiny-chat",
    "adapters": [{"name": name, "uri": f"file:///{name}"} for name in ("sql", "law")],
}


def reported(*adapters: dict[str, Any]) -> ScalingDecision:
    return ScalingDecision(2, "False", "Manual", "", fields={"adapters": list(adapters)})


def entry(name: str, replicas: int = 2, failed: int = 0, message: str = "") -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "failedReplicas": failed, "message": message}


def pool(model: dict[str, Any]) -> World:
    return World(pool_object({"model": model, "engine": {"runtime": "Simulator"}, "replicas": 2}))


def test_pool_without_adapters_has_no_such_condition() -> None:
    world = World()
    world.converge()
    assert "AdaptersReady" not in world.reasons()
    assert "adapters" not in world.pool["status"]


def test_condition_follows_the_replicas() -> None:
    world = pool(MODEL)
    world.converge()
    assert world.reasons()["AdaptersReady"] == ("Unknown", "AdaptersUnknown")
    world.scaling = reported(entry("sql", 1, 0, "e1: loading"), entry("law"))
    world.converge()
    assert world.reasons()["AdaptersReady"] == ("False", "AdapterLoading")
    world.scaling = reported(entry("sql", 1, 0, "e1: loading"), entry("law", 1, 1, "e0: no such folder"))
    world.converge()
    assert world.condition("AdaptersReady")["message"] == "law: e0: no such folder. sql: e1: loading"
    assert world.reasons()["AdaptersReady"] == ("False", "AdapterFailed")
    assert world.reasons()["Ready"] == ("True", "Serving"), "the model and the other adapters are served"
    world.scaling = reported(entry("sql"), entry("law"))
    world.converge()
    assert world.reasons()["AdaptersReady"] == ("True", "AdaptersLoaded")
    events = [(event.type, event.reason) for event in world.events if event.reason.startswith("Adapter")]
    assert events == [("Normal", "AdapterLoading"), ("Warning", "AdapterFailed"), ("Normal", "AdaptersLoaded")]


def test_failures_during_a_rollout_are_no_warning() -> None:
    """A new volume is only in new pods, and agents of old ones read the same list."""
    world = pool(MODEL)
    world.scaling = reported(
        entry("sql"), entry("law", 1, 1, "e0: there is no adapter_config.json in /models/adapter-1")
    )
    world.converge()
    assert world.reasons()["AdaptersReady"] == ("False", "AdapterFailed")
    world.objects["Deployment", "chat-engine"]["status"]["updatedReplicas"] = 1
    world.do(world.plan())
    assert world.reasons()["AdaptersReady"] == ("False", "AdapterLoading")


def test_condition_is_not_true_before_all_ready_replicas_have_reported() -> None:
    world = pool(MODEL)
    world.scaling = reported(entry("sql"), entry("law"))
    world.converge()
    world.scaling = reported(entry("sql", 1), entry("law"))
    world.converge()
    condition = world.condition("AdaptersReady")
    assert (condition["status"], condition["message"]) == ("False", "sql: on 1 of 2 ready replicas")


def test_old_reports_say_nothing_of_another_spec_or_of_no_replicas() -> None:
    world = pool(MODEL)
    world.scaling = reported(entry("sql"), entry("law"))
    world.converge()
    world.scaling = ScalingDecision(2, "False", "Manual", "", fields={})
    world.converge()
    assert world.reasons()["AdaptersReady"] == ("Unknown", "AdaptersUnknown")
    assert "adapters" not in world.pool["status"]
    world.scaling = reported(entry("sql"), entry("law"))
    world.converge()
    world.scaling = None
    world.pool["spec"]["model"] = {**MODEL, "adapters": [{"name": "sql", "uri": "file:///new"}, MODEL["adapters"][1]]}
    world.pool["metadata"]["generation"] = world.pool["metadata"].get("generation", 1) + 1
    world.do(world.plan())
    assert world.reasons()["AdaptersReady"] == ("Unknown", "AdaptersUnknown")
    world.scaling = ScalingDecision(0, "False", "Manual", "", fields={"adapters": [entry("sql"), entry("law")]})
    world.pool["spec"]["replicas"] = 0
    world.converge()
    assert world.condition("AdaptersReady")["message"] == "no replica is ready"


def test_status_keeps_the_last_reports_and_drops_removed_adapters() -> None:
    world = pool(MODEL)
    world.scaling = reported(entry("sql"), entry("law"))
    world.converge()
    world.scaling = None  # a new operator gathers reports first
    world.converge()
    assert [one["name"] for one in world.pool["status"]["adapters"]] == ["sql", "law"]
    world.pool["spec"]["model"] = {**MODEL, "adapters": MODEL["adapters"][:1]}
    world.converge()
    assert [one["name"] for one in world.pool["status"]["adapters"]] == ["sql"]
    world.pool["spec"]["model"] = {"uri": MODEL["uri"]}
    world.converge()
    assert "adapters" not in world.pool["status"]
    assert "AdaptersReady" not in world.reasons()
