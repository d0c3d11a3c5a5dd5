"""A gateway's plan: the pools that it serves and their names, its routers, and the conditions of both."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway_world import ROUTER, Gateway, attached, model
from support.operator_world import CONFIG, NOW, World, pool_object

from plumage.api.v1alpha1 import InferenceGateway, parse_kept
from plumage.cluster import CORDON, OURS
from plumage_operator.autoscaling.pods import pods_observed
from plumage_operator.controller.actions import Annotate, Apply, EmitEvent
from plumage_operator.controller.gateway_plan import CONFIG_SEEN, plan_gateway_changes, plan_gateway_status
from plumage_operator.controller.plan import plan, plan_status
from plumage_operator.controller.served_pools import find_served_pools
from plumage_operator.observed import AttachedPool, Observed, Refusal
from plumage_operator.resources import GatewayContext, build_gateway_children
from plumage_router.config import load_multi_pool


def test_two_pools_get_one_router_that_reads_its_file(tmp_path: Path) -> None:
    world = Gateway(attached("chat"), attached("code", born=1))
    world.converge()
    assert {kind for kind, name in world.objects if name == "front-gateway"} == {
        "ServiceAccount", "RoleBinding", "NetworkPolicy", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment",
    }  # fmt: skip
    assert len(world.objects) == 7
    for thing in world.objects.values():
        assert OURS.items() <= thing["metadata"]["labels"].items(), "a watch finds it"
        assert thing["metadata"]["ownerReferences"][0]["kind"] == "InferenceGateway"
    (tmp_path / "router.json").write_text(json.dumps(world.config))
    read = load_multi_pool(tmp_path / "router.json")
    assert [(pool.pool, pool.names) for pool in read.pools] == [("chat", ("chat",)), ("code", ("code",))]
    slices = read.pools[0].membership
    assert slices is not None
    assert slices.endpoint_slices.service == "chat-engine"
    assert str(slices.endpoint_slices.cordoned_file) == "/etc/plumage/cordoned-chat.json"
    assert read.pools[1].directory_url == "redis://code-directory.default.svc:6379"
    binding = world.objects["RoleBinding", "front-gateway"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("plumage-router", "front-gateway")

    assert world.reasons() == {
        "Ready": ("True", "Serving"), "Accepted": ("True", "Valid"), "RouterReady": ("True", "Serving"),
    }  # fmt: skip
    status = world.pool["status"]
    assert (status["replicas"], status["readyReplicas"], status["pools"]) == (2, 2, ["chat", "code"])
    assert status["addresses"] == ["http://front-gateway.default.svc:8000"]
    parse_kept(world.pool, "the gateway")  # the status has the form of the API


def test_names_come_from_the_gateway_or_from_the_unnamed_pool() -> None:
    adapters = [{"name": "lora", "uri": "hf://a/b"}]
    world = Gateway(
        attached("chat", adapters=adapters),
        attached("free", born=1, name="own", aliases=["other"]),
        models=[model("gpt", "chat", aliases=["gpt-4"])],
    )
    world.converge()
    assert world.names() == {"chat": ["gpt", "gpt-4", "lora"], "free": ["own", "other"]}
    chat = world.config["pools"][0]["model"]
    assert (chat["name"], chat["aliases"], chat["adapters"]) == ("chat", ["gpt", "gpt-4"], ["lora"])


def test_older_of_two_unnamed_pools_serves_their_name_and_both_are_reported() -> None:
    pools = (attached("young", born=9, name="chat"), attached("old", born=1, name="chat"), attached("code"))
    world = Gateway(*pools, models=[model("code", "code")])
    world.converge()
    assert world.names() == {"code": ["code"], "old": ["chat"]}
    assert world.reasons()["Accepted"] == ("False", "ModelConflict")
    message = world.condition("Ready")["message"]
    assert "pools old and young both have model chat, which leads to old" in message
    assert "list both pools under one of the gateway's models" in message
    assert world.reasons()["RouterReady"] == ("True", "Serving"), "the pool that serves keeps serving"


def _weights(world: Gateway) -> dict[str, dict[str, int]]:
    shared = load_shared(world)
    return {one["name"]: {share["pool"]: share.get("weight", 1) for share in one["pools"]} for one in shared}


def load_shared(world: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.config.get("sharedModels", [])
    return found


def test_pools_of_one_model_share_its_names_and_adapters_by_weight() -> None:
    law, art = ({"name": name, "uri": f"hf://a/{name}"} for name in ("law", "art"))
    split = model("gpt", "stable", "canary", aliases=["gpt-4"])
    split["pools"][0]["weight"] = 9
    world = Gateway(attached("canary", adapters=[law, art]), attached("stable", born=1, adapters=[law]), models=[split])
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert "for models gpt, gpt-4, law, art" in world.condition("Ready")["message"]
    both = {"stable": 9, "canary": 1}
    assert _weights(world) == {"gpt": both, "gpt-4": both, "law": both}
    assert world.names() == {"canary": ["gpt", "gpt-4", "law", "art"], "stable": ["gpt", "gpt-4", "law"]}
    before = world.hash()
    world.pool["spec"]["models"][0]["pools"][1]["weight"] = 0
    world.converge()
    assert _weights(world)["gpt"] == {"stable": 9, "canary": 0}
    assert "art" not in world.names()["canary"], "no pool with a share has it"
    assert world.hash() == before, "a share changes without new pods"


def test_pool_of_a_fallback_takes_the_names_that_lead_to_it() -> None:
    models = [model("big", "chat", fallback="small"), model("small", "spare", fallback="big")]
    world = Gateway(attached("chat"), attached("spare", born=1), models=models)
    world.converge()
    assert world.names() == {"chat": ["big", "small"], "spare": ["big", "small"]}
    assert {one["name"]: one["fallback"] for one in load_shared(world)} == {"big": "small", "small": "big"}
    assert _weights(world) == {"big": {"chat": 1}, "small": {"spare": 1}}
    spare = next(pool for pool in world.config["pools"] if pool["pool"] == "spare")
    assert spare["model"]["aliases"] == ["big", "small"], "its requests get the model's own name"


def test_copies_go_to_the_pool_of_the_mirror() -> None:
    law, art = ({"name": name, "uri": f"hf://a/{name}"} for name in ("law", "art"))
    mirrored = model("gpt", "stable", aliases=["gpt-4"], requestMirror={"poolRef": {"name": "next"}, "percent": 5})
    pools = (attached("stable", adapters=[law, art]), attached("next", born=1, adapters=[law]))
    world = Gateway(*pools, models=[mirrored])
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.pool["status"]["pools"] == ["next", "stable"]
    assert world.condition("Ready")["message"].endswith("for models gpt, gpt-4, law, art"), "next has no own name"
    copied = {"pool": "next", "percent": 5}
    shared = {one["name"]: (one["pools"], one["requestMirror"]) for one in load_shared(world)}
    assert shared == {name: ([{"pool": "stable", "weight": 1}], copied) for name in ("gpt", "gpt-4", "law")}
    assert world.names() == {"stable": ["gpt", "gpt-4", "law", "art"], "next": ["gpt", "gpt-4", "law"]}
    spare = next(pool for pool in world.config["pools"] if pool["pool"] == "next")
    assert spare["model"]["aliases"] == ["gpt", "gpt-4"], "a copy gets the name of its own pool's model"
    before = world.hash()
    world.pool["spec"]["models"][0]["requestMirror"]["percent"] = 0
    world.converge()
    assert load_shared(world)[0]["requestMirror"] == {"pool": "next", "percent": 0}
    assert world.hash() == before, "a share changes without new pods"


@pytest.mark.parametrize(("there", "reason"), [(False, "PoolMissing"), (True, "PoolNotAttached")])
def test_mirror_that_cannot_be_served_is_reported_and_its_model_is_served(there: bool, reason: str) -> None:
    mirrored = model("chat", "chat", requestMirror={"poolRef": {"name": "next"}})
    world = Gateway(attached("chat"), models=[mirrored])
    world.strangers = {"next"} if there else set()
    world.converge()
    assert world.reasons()["Accepted"] == ("False", reason)
    assert "InferencePool next" in world.condition("Accepted")["message"]
    assert (world.names(), load_shared(world)) == ({"chat": ["chat"]}, [])


def test_adapter_of_two_models_goes_to_the_pools_of_the_first() -> None:
    law = [{"name": "law", "uri": "hf://a/law"}]
    pools = (attached("stable", adapters=law), attached("canary", born=1, adapters=law))
    world = Gateway(*pools, models=[model("chat", "stable", "canary"), model("next", "canary")])
    world.converge()
    assert world.reasons()["Accepted"] == ("True", "Valid")
    assert _weights(world)["law"] == {"stable": 1, "canary": 1}


def test_model_without_a_pool_leads_to_its_fallback() -> None:
    models = [model("big", "gone", fallback="mid"), model("mid", "gone", fallback="small"), model("small", "chat")]
    world = Gateway(attached("chat"), models=models)
    world.converge()
    assert world.reasons()["Ready"] == ("False", "PoolMissing")
    assert sorted(world.names()["chat"]) == ["big", "mid", "small"]
    models = [model("big", "gone", fallback="mid"), model("mid", "gone", fallback="big"), model("chat", "chat")]
    circle = Gateway(attached("chat"), models=models)
    circle.converge()
    assert circle.names() == {"chat": ["chat"]}


def test_broken_pool_has_no_share() -> None:
    broken = attached("broken", uri="s3://bucket/model")  # the routers cannot read a tokenizer there
    world = Gateway(broken, attached("chat", born=1), models=[model("gpt", "broken", "chat")])
    world.converge()
    assert (world.names(), _weights(world)) == ({"chat": ["gpt"]}, {})


@pytest.mark.parametrize(
    ("there", "reason", "text"),
    [
        (False, "PoolMissing", "there is no InferencePool code in this namespace: create it"),
        (True, "PoolNotAttached", "set its spec.router to {gatewayRef: {name: front}}"),
    ],
)
def test_unservable_pool_is_reported_and_the_others_are_served(there: bool, reason: str, text: str) -> None:
    world = Gateway(attached("chat"), models=[model("chat", "chat"), model("code", "code")])
    world.strangers = {"code"} if there else set()
    world.converge()
    assert world.names() == {"chat": ["chat"]}
    assert world.reasons()["Ready"] == ("False", reason)
    assert text in world.condition("Accepted")["message"]


def test_gateway_mounts_the_keys_of_its_present_pools() -> None:
    world = Gateway(attached("chat"), models=[model("chat", "chat")])
    world.converge()

    def keys() -> list[str]:
        volumes = world.objects[ROUTER]["spec"]["template"]["spec"]["volumes"]
        return [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]

    assert len(keys()) == 1
    seen = {pod["metadata"]["annotations"][CONFIG_SEEN] for pod in world.pods.values()}
    assert len(seen) == 1
    world.pools.append(attached("code", born=1))
    changes = plan_gateway_changes(world.seen(), CONFIG)
    assert [(action.child["kind"], action.known) for action in changes if isinstance(action, Apply)] == [
        ("ConfigMap", True), ("Deployment", True),
    ]  # fmt: skip
    assert not [one for one in changes if isinstance(one, Annotate)], (
        "an annotation makes the kubelet read the ConfigMap, so it comes after the change"
    )
    world.converge()
    assert world.names() == {"chat": ["chat"], "code": ["code"]}
    assert len(keys()) == 2
    assert not seen & {pod["metadata"]["annotations"][CONFIG_SEEN] for pod in world.pods.values()}
    world.pools = [one for one in world.pools if one.pool["metadata"]["name"] == "code"]
    world.converge()
    assert world.names() == {"code": ["code"]}
    assert len(keys()) == 1
    assert world.reasons()["Ready"] == ("False", "PoolMissing")
    world.pools[0].pool["metadata"]["deletionTimestamp"] = "2027-01-01T00:01:00Z"
    world.converge()
    assert world.names() == {}, "a pool that is being deleted gets nothing new"


def test_volumes_of_several_models_are_mounted_apart_and_roll_the_routers() -> None:
    world = Gateway(attached("chat"), models=[model("chat", "chat")])
    world.converge()
    before = world.hash()
    world.pools += [attached("a" * 53, born=1, uri="hf://org/a"), attached("b", born=2, uri="pvc://claim/b")]
    world.converge()
    assert world.hash() != before
    pod = world.objects[ROUTER]["spec"]["template"]["spec"]
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(set(volumes)) == len(volumes)
    assert all(len(name) <= 63 for name in volumes)
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == set(volumes)
    folders = [pool["model"]["modelFolder"] for pool in world.config["pools"]]
    assert len(set(folders)) == 3
    [fetch] = pod["initContainers"]
    assert "--uri=hf://org/a" in fetch["command"]
    assert f"--to={folders[1]}" in fetch["command"]


def test_listeners_auth_and_bounds_reach_the_router() -> None:
    listeners = [{"name": "http", "port": 80}, {"name": "other", "port": 8080}]
    auth = {"apiKeysRef": {"name": "keys", "key": "k"}, "adminKeyRef": {"name": "admin", "key": "a"}}
    world = Gateway(attached("chat"), listeners=listeners, auth=auth, replicas=3, flowControl={"maxInFlight": 5},
                    allowedRequestFields=["priority"], sortTools=True, accessLog=True, usageLog=True,
                    tracing={"endpoint": "http://collector:4318"})  # fmt: skip
    world.converge()
    assert [pool["allowedRequestFields"] for pool in world.config["pools"]] == [["priority"]]
    assert [pool["sortTools"] for pool in world.config["pools"]] == [True]
    assert world.config["tracing"] == {
        "endpoint": "http://collector:4318", "samplingRatePerMillion": 10_000, "service": "front-gateway",
    }  # fmt: skip
    assert (world.config["accessLog"], [pool["accessLog"] for pool in world.config["pools"]]) == (True, [True])
    assert [pool["usageLog"] for pool in world.config["pools"]] == [True]
    ports = world.objects["Service", "front-gateway"]["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in ports] == [
        ("http", 80, "http"), ("other", 8080, "http"),
    ]  # fmt: skip
    assert world.config["auth"]["apiKeysFile"] == "/etc/plumage-keys/keys"
    assert world.config["limits"]["maxInFlight"] == 5
    secrets = [
        volume["secret"]["secretName"]
        for volume in world.objects[ROUTER]["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert [name for name in secrets if not name.startswith("chat-keys")] == ["keys", "admin"]
    assert len(secrets) == 3
    assert world.pool["status"]["readyReplicas"] == 3
    assert world.pool["status"]["addresses"] == [f"http://front-gateway.default.svc:{port}" for port in (80, 8080)]


def test_gateway_without_pools_is_not_ready() -> None:
    idle = Gateway(attached("chat"), models=[{"name": "x", "pools": [{"poolRef": {"name": "chat"}, "weight": 0},
                                                                  {"poolRef": {"name": "gone"}}]}])  # fmt: skip
    idle.converge()
    assert idle.reasons()["Ready"] == ("False", "PoolMissing")
    gateway = Gateway(attached("chat"), models=[model("chat", "chat")])
    gateway.pools[0].pool["spec"]["engine"]["tensorParallelSize"] = 0
    gateway.converge()
    assert gateway.names() == {}
    assert gateway.reasons()["Ready"] == ("False", "NoPool")
    assert "no pool that refers to it can be served" in gateway.condition("Ready")["message"]


def test_changed_child_is_restored_and_a_refusal_reported() -> None:
    world = Gateway(attached("chat"))
    world.converge()
    world.objects["Service", "front-gateway"]["spec"]["ports"][0]["port"] = 1
    del world.objects["ConfigMap", "front-gateway"]
    world.converge()
    assert world.objects["Service", "front-gateway"]["spec"]["ports"][0]["port"] == 8000
    assert {event.reason for event in world.events if isinstance(event, EmitEvent)} >= {
        "ChildRepaired",
        "ChildRecreated",
    }
    world.refusals = (Refusal("Service", "front-gateway", "NameTaken", "Service front-gateway exists"),)
    world.do(plan_gateway_status(world.seen(), CONFIG, NOW))
    assert world.reasons()["Accepted"] == ("False", "NameTaken")


def test_paused_or_deleted_gateway_is_left_alone() -> None:
    world = Gateway(attached("chat"))
    world.pool["metadata"]["annotations"] = {"inference.plumage.dev/paused": "true"}
    assert plan_gateway_changes(world.seen(), CONFIG) == ()
    world.pool["metadata"] = {**world.pool["metadata"], "annotations": {}, "deletionTimestamp": "2027-01-01T00:00:00Z"}
    assert world.plan() == ()


def test_cordoned_replicas_of_each_pool_reach_the_router() -> None:
    annotations, labels = {CORDON: "true"}, {"app.kubernetes.io/component": "engine"}
    pod = {"kind": "Pod", "metadata": {"name": "chat-engine-1", "annotations": annotations, "labels": labels}}
    world = Gateway(AttachedPool(attached("chat").pool, (pod,)), attached("code", born=1))
    world.converge()
    data = world.objects["ConfigMap", "front-gateway"]["data"]
    assert json.loads(data["cordoned-chat.json"]) == {"cordoned": ["chat-engine-1"]}
    assert json.loads(data["cordoned-code.json"]) == {"cordoned": []}


def pool_behind(gateway: Gateway | None, spec: dict[str, Any] | None = None, **more: Any) -> World:
    """A converged pool behind that gateway. spec: its other fields."""
    world = World(copy.deepcopy(attached("chat").pool))
    world.pool["spec"] |= spec or {}
    pods = () if gateway is None else tuple(gateway.pods.values())
    for _ in range(3):
        world.run_controllers()
        observed = world.observed(gateway=None if gateway is None else gateway.pool, gateway_pods=pods, **more)
        world.do(plan(observed, CONFIG, NOW))
    return world


def test_pool_is_ready_once_its_gateway_serves_it() -> None:
    gateway = Gateway(attached("chat"))
    assert pool_behind(None).reasons()["Ready"] == ("False", "GatewayMissing")
    assert pool_behind(gateway).reasons()["Ready"] == ("False", "NotServed")
    gateway.converge()
    world = pool_behind(gateway)
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.pool["status"]["address"] == "http://front-gateway.default.svc:8000"
    assert ("Deployment", "chat-router") not in world.objects
    gateway.pools = [attached("chat", born=5), attached("older", born=1, name="chat"), attached("code")]
    gateway.pool["spec"]["models"] = [model("code", "code")]
    gateway.converge()
    world = pool_behind(gateway)
    assert world.reasons()["RouterReady"] == ("False", "NotServed")
    assert "pools older and chat both have model chat" in world.condition("Ready")["message"]
    assert "address" not in world.pool["status"]


def test_engines_and_directory_allow_the_routers_of_the_gateway() -> None:
    gateway = Gateway(attached("chat"))
    gateway.converge()
    world = pool_behind(gateway)
    routers = {"inference.plumage.dev/gateway": "front", "app.kubernetes.io/component": "gateway"}
    for part in ("engine", "directory"):
        rules = world.objects["NetworkPolicy", f"chat-{part}"]["spec"]["ingress"]
        peers = [peer["podSelector"]["matchLabels"] for rule in rules for peer in rule["from"] if "podSelector" in peer]
        assert routers in peers
    pod = next(iter(gateway.pods.values()))
    assert routers.items() <= pod["metadata"]["labels"].items(), "these are the labels of their pods"


def test_pool_that_moves_behind_a_gateway_keeps_its_engines() -> None:
    """Neither the agents' settings nor the pods name their routers."""
    gateway = Gateway(attached("chat"))
    gateway.converge()
    alone = World(attached("chat", gateway=None).pool)
    alone.converge()
    engines = ("Deployment", "chat-engine")
    assert alone.objects[engines]["spec"]["template"] == pool_behind(gateway).objects[engines]["spec"]["template"]


def test_field_without_effect_is_named_in_accepted() -> None:
    gateway = Gateway(attached("chat"))
    gateway.converge()
    network = {"networkPolicy": {"clientNamespaces": ["apps"]}}
    for spec, reported in ((network, True), ({}, False)):
        world = pool_behind(gateway, spec)
        accepted = world.condition("Accepted")
        assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
        assert accepted["message"].startswith("spec.networkPolicy.clientNamespaces has no effect behind") is reported
    alone = World(pool_object({"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}, **network}))
    alone.converge()
    assert alone.condition("Accepted")["message"] == ""


def test_autoscaler_asks_the_routers_of_the_gateway_about_the_pool() -> None:
    made = [{"kind": "ReplicaSet", "name": "front-gateway-5d4f8", "controller": True}]
    labels = {"app.kubernetes.io/component": "gateway"}
    router = {"metadata": {"name": "front-gateway-0", "labels": labels, "ownerReferences": made},
              "status": {"podIP": "10.0.0.9"}}  # fmt: skip
    stranger = {"metadata": {"name": "stranger", "labels": labels}, "status": {"podIP": "10.0.0.10"}}
    gateway = {"kind": "InferenceGateway", "metadata": {"name": "front"}}
    observed = Observed(attached("chat").pool, {}, gateway=gateway, gateway_pods=(router, stranger))
    [asked] = pods_observed(observed).routers
    assert asked.url == "http://10.0.0.9:8000/v1/plumage/fleet?pool=chat"
    assert pods_observed(Observed(attached("chat").pool, {})).routers == ()


def test_gateway_has_a_bound_of_pools() -> None:
    pools = [attached(f"pool-{index:02d}") for index in range(66)]
    world = Gateway(*pools, models=[model("pool-00", "pool-00")])
    gateway = parse_kept(world.pool, "the gateway")
    assert isinstance(gateway, InferenceGateway)
    serving = find_served_pools(world.seen(), gateway, CONFIG)
    assert len(serving.served) == 64
    assert "pool-64, pool-65 are not served" in serving.problems[0].message
    config = next(
        one
        for one in build_gateway_children(GatewayContext(gateway, CONFIG, serving.served))
        if one["kind"] == "ConfigMap"
    )
    assert sum(map(len, config["data"].values())) < 200_000, "a ConfigMap holds a mebibyte"


def test_status_of_a_pool_depends_on_its_gateway() -> None:
    """A pool whose gateway is unknown reports it at once, before any child exists."""
    world = World(attached("chat").pool)
    world.do(plan_status(world.observed(), CONFIG, NOW))
    assert world.reasons()["RouterReady"] == ("False", "GatewayMissing")


def test_routers_of_a_gateway_have_resources_and_the_scheduling_fields_of_engines() -> None:
    fields = {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "high",
    }
    amounts = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    plain, named = Gateway(attached("chat")), Gateway(attached("chat"))
    named.pool["spec"] |= {**fields, "resources": amounts}
    for world in (plain, named):
        world.converge()
    inside, given = (
        world.objects["Deployment", "front-gateway"]["spec"]["template"]["spec"] for world in (plain, named)
    )
    (spread,) = inside["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert "memory" in inside["containers"][0]["resources"]["limits"]
    assert {name: given[name] for name in fields} == fields
    assert given["containers"][0]["resources"] == amounts
