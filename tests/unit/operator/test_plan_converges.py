"""An interrupted plan is made again, and ends in the same state."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NOW, World, copied, pool_object

from plumage_operator.controller.actions import Apply, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.plan import DELETION_COST
from plumage_operator.observed import ScalingDecision, key_of

SPECS: dict[str, dict[str, Any]] = {
    "simulator": {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}, "replicas": 2},
    "vllm": {
        "model": {"uri": "hf://org/model", "tokenRef": {"name": "hub", "key": "token"}},
        "engine": {"hostMemory": {"capacity": "2Gi"}, "tensorParallelSize": 2},
        "autoscaling": {"maxReplicas": 3},
    },
    "everything": {
        "model": {"uri": "pvc://models/chat", "name": "chat"},
        "engine": {
            "resources": {"limits": {"cpu": "1000m", "memory": "8192Mi"}},
            "tolerations": [{"operator": "Exists"}],
        },
        "replicas": 1,
        "router": {
            "auth": {"apiKeysRef": {"name": "keys", "key": "k"}},
            "tls": {"secretName": "router-tls"},
            "ingress": {"host": "chat.example.com", "tlsSecretRef": {"name": "tls"}},
            "httpRoute": {"parentRefs": [{"name": "front"}]},
        },
        "directory": {"redisRef": {"url": "rediss://cache:6379", "passwordRef": {"name": "r", "key": "p"}}},
        "monitoring": {"enabled": True},
        "networkPolicy": {"clientNamespaces": ["apps"]},
    },
    "published": {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator"},
        "router": {"endpointPicker": {"proxyNamespaces": ["edge"], "inferencePool": {"failureMode": "FailOpen"}}},
    },
    "gateway": {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator"},
        "router": {"gatewayRef": {"name": "front"}},
    },
}


def settled(spec: dict[str, Any]) -> World:
    world = World(pool_object(spec))
    world.converge()
    return world


def shape(world: World) -> dict[str, Any]:
    """What must be equal for every path to this state."""
    return {
        f"{kind}/{name}": {part: thing[part] for part in thing if part not in ("metadata", "status")}
        for (kind, name), thing in world.objects.items()
    } | {"reasons": world.reasons()}


def settled_shape(name: str) -> dict[str, Any]:
    return copied(_settled_shape(name))


@cache
def _settled_shape(name: str) -> dict[str, Any]:
    return shape(settled(SPECS[name]))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_converged_pool_gets_no_action(spec: dict[str, Any]) -> None:
    assert settled(spec).plan() == ()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_crash_after_any_action_converges(spec: dict[str, Any]) -> None:
    whole = shape(settled(spec))
    count = len(World(pool_object(spec)).plan())
    for cut in range(count):
        world = World(pool_object(spec))
        world.do(world.plan()[:cut])
        world.converge()
        assert shape(world) == whole, cut


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(SPECS)),
    st.sampled_from(sorted(SPECS)),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6),
)
def test_crashes_between_two_specs_converge(before: str, after: str, cuts: list[tuple[int, bool]]) -> None:
    world = World(pool_object(SPECS[before]))
    world.do(world.plan()[: cuts[0][0]] if cuts else world.plan())
    world.pool["spec"] = copy.deepcopy(SPECS[after])
    world.pool["metadata"]["generation"] = 2
    for cut, controllers in cuts:
        world.do(world.plan()[:cut])
        if controllers:
            world.run_controllers()
    world.converge()
    reached, wanted = shape(world), settled_shape(after)
    if "autoscaling" in SPECS[after]:  # it begins with the present replicas
        reached["Deployment/chat-engine"]["spec"].pop("replicas")
        wanted["Deployment/chat-engine"]["spec"].pop("replicas")
    assert reached == wanted
    assert all(one["observedGeneration"] == 2 for one in world.pool["status"]["conditions"])


def test_children_are_owned_by_the_pool_and_labelled() -> None:
    world = settled(SPECS["simulator"])
    for thing in world.objects.values():
        (owner,) = thing["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("InferencePool", "pool-uid", True)
        assert thing["metadata"]["labels"]["inference.plumage.dev/pool"] == "chat"


def test_deleted_child_is_recreated_with_an_event() -> None:
    world = settled(SPECS["simulator"])
    del world.objects["Service", "chat-router"]
    made, event = world.plan()
    assert isinstance(event, EmitEvent)
    assert event.reason == "ChildRecreated"
    assert isinstance(made, Apply)
    assert not made.known  # the present object may belong to another owner
    world.converge()
    assert ("Service", "chat-router") in world.objects


def test_child_of_a_newer_operator_is_created_without_an_event() -> None:
    world = settled(SPECS["simulator"])
    del world.objects["Service", "chat-router"]
    world.known.clear()  # a newer operator, which has never seen one
    assert [type(action) for action in world.plan()] == [Apply]


def test_changed_child_is_restored_with_an_event() -> None:
    world = settled(SPECS["simulator"])
    world.objects["Deployment", "chat-engine"]["spec"]["replicas"] = 7
    made, event = world.plan()
    assert isinstance(event, EmitEvent)
    assert (event.type, event.reason) == ("Warning", "ChildRepaired")
    assert "Deployment chat-engine" in event.message
    assert "spec.replicas" in event.message
    assert isinstance(made, Apply)


def test_fields_of_other_managers_are_left_alone() -> None:
    world = settled(SPECS["simulator"])
    deployment = world.objects["Deployment", "chat-engine"]
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    deployment["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    deployment["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "mesh:1"})
    assert world.plan() == ()


def test_child_without_its_owner_is_checked_before_it_is_adopted() -> None:
    world = settled(SPECS["simulator"])
    del world.objects["Service", "chat-engine"]["metadata"]["ownerReferences"]
    (made,) = world.plan()
    assert isinstance(made, Apply)
    assert not made.known


def test_unwanted_child_is_deleted_by_uid() -> None:
    world = settled(SPECS["simulator"])
    uid = world.objects["Deployment", "chat-directory"]["metadata"]["uid"]
    world.pool["spec"]["directory"] = {"redisRef": {"url": "redis://cache:6379"}}
    world.pool["metadata"]["generation"] = 2
    gone = {action for action in world.plan() if isinstance(action, Delete)}
    assert Delete("Deployment", "chat-directory", uid) in gone
    assert {action.name for action in gone} == {"chat-directory"}


def test_objects_of_others_with_our_label_are_not_deleted() -> None:
    world = settled(SPECS["simulator"])
    labels = {"inference.plumage.dev/pool": "chat"}
    world.objects["ConfigMap", "theirs"] = {"kind": "ConfigMap", "metadata": {"name": "theirs", "labels": labels}}
    assert world.plan() == ()


def test_deleted_pool_is_left_to_the_garbage_collector() -> None:
    world = settled(SPECS["simulator"])
    world.objects.clear()
    world.pool["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    assert world.plan() == ()


def test_paused_pool_is_unchanged_and_reports_the_pause() -> None:
    world = settled(SPECS["simulator"])
    world.pool["metadata"]["annotations"] = {"inference.plumage.dev/paused": "true"}
    world.objects["Deployment", "chat-engine"]["spec"]["replicas"] = 7
    actions = world.plan()
    assert {type(action) for action in actions} == {EmitEvent, WriteStatus}
    assert "Paused" in [action.reason for action in actions if isinstance(action, EmitEvent)]
    world.do(actions)
    assert world.reasons()["Paused"] == ("True", "Paused")
    del world.pool["metadata"]["annotations"]
    world.converge()
    assert world.objects["Deployment", "chat-engine"]["spec"]["replicas"] == 2
    assert world.reasons()["Paused"] == ("False", "NotPaused")


def test_cordon_reaches_the_routers_and_restarts_nothing() -> None:
    world = settled(SPECS["simulator"])
    templates = {
        name: thing["spec"]["template"] for (kind, name), thing in world.objects.items() if kind == "Deployment"
    }
    world.pods["chat-engine-1"]["metadata"]["annotations"]["inference.plumage.dev/cordoned"] = "true"
    world.do(world.plan())
    assert '"chat-engine-1"' in world.objects["ConfigMap", "chat-router"]["data"]["cordoned.json"]
    assert templates == {
        name: thing["spec"]["template"] for (kind, name), thing in world.objects.items() if kind == "Deployment"
    }


def test_coldest_replicas_are_marked_before_the_deployment_shrinks() -> None:
    world = settled(SPECS["simulator"])
    world.pool["spec"] = {**SPECS["simulator"], "autoscaling": {"maxReplicas": 3}}
    del world.pool["spec"]["replicas"]
    world.scaling = ScalingDecision(1, "True", "ScaledDown", "1 is enough", {"chat-engine-1": -100})
    actions = world.plan()
    marked = next(index for index, one in enumerate(actions) if getattr(one, "pod", "") == "chat-engine-1")
    shrunk = next(
        index
        for index, one in enumerate(actions)
        if isinstance(one, Apply) and key_of(one.child) == ("Deployment", "chat-engine")
    )
    assert marked < shrunk
    assert actions[marked].annotations == {DELETION_COST: "-100"}  # type: ignore[union-attr]


def test_last_scaling_decision_holds_without_a_new_one() -> None:
    spec = {key: value for key, value in SPECS["simulator"].items() if key != "replicas"}
    world = World(pool_object({**spec, "autoscaling": {"minReplicas": 1, "maxReplicas": 5}}))
    world.converge()
    assert world.reasons()["Scaling"] == ("Unknown", "AutoscalerUnknown")
    autoscaling = {"wantedReplicas": 4, "decision": "4 are needed", "lastScaleTime": "2027-01-01T00:00:00Z"}
    fields = {"autoscaling": autoscaling, "hitRatioPercent": 50}
    world.scaling = ScalingDecision(4, "True", "ScaledUp", "4 are needed", fields=fields)
    world.converge()
    world.scaling = None  # a new operator has not polled yet
    assert world.plan(now=NOW + 60) == (), "it writes nothing for it"
    assert {name: world.pool["status"][name] for name in fields} == fields
    assert world.pool["status"]["desiredReplicas"] == 4


@pytest.mark.parametrize("decided", [1, 5])
def test_decision_without_a_written_status_is_kept(decided: int) -> None:
    spec = {key: value for key, value in SPECS["simulator"].items() if key != "replicas"}
    world = World(pool_object({**spec, "autoscaling": {"minReplicas": 1, "maxReplicas": 5}}))
    world.scaling = ScalingDecision(3, "True", "AtTarget", "3 are right")
    world.converge()
    world.scaling = ScalingDecision(decided, "True", "Scaled", f"{decided} are right")
    world.do(action for action in world.plan() if isinstance(action, Apply))  # and then the operator dies
    assert world.pool["status"]["desiredReplicas"] == 3
    world.scaling = None
    world.converge()
    assert world.objects["Deployment", "chat-engine"]["spec"]["replicas"] == decided
    assert world.pool["status"]["desiredReplicas"] == decided


def test_changed_monitor_labels_emit_no_event() -> None:
    """They are a change of the spec itself."""
    world = settled({**SPECS["simulator"], "monitoring": {"enabled": True, "labels": {"release": "a"}}})
    count, monitor = len(world.events), ("PodMonitor", "chat-router")
    for labels in ({"release": "a", "team": "shop"}, {"team": "shop"}, {}):
        world.pool["spec"]["monitoring"]["labels"] = labels
        world.pool["metadata"]["generation"] += 1
        world.converge()
        found = world.objects[monitor]["metadata"]["labels"]
        assert {key: value for key, value in found.items() if key in ("release", "team")} == labels
    assert [one.reason for one in world.events[count:]] == []
