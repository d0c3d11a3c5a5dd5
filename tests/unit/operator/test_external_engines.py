"""A pool whose engines somebody else deploys: what is made of it, how its pods are found, and its conditions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.operator_world import CONFIG, World, pool_object

from plumage.fleet_report import ReplicaReport, RouterReport
from plumage_operator.autoscaling.pool_load import ReportWindow
from plumage_operator.autoscaling.scaler import PoolScaler, engines_seen
from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import CreateSecret
from plumage_operator.controller.plan import plan_key_secret
from plumage_operator.controller.reconcile import fingerprint_of
from plumage_operator.observed import ScalingDecision
from plumage_operator.resources.context import read_pool

SPEC: dict[str, Any] = {
    "model": {"uri": "hf://org/model"},
    "engine": {"external": {"inferencePoolRef": {"name": "theirs"}}},
    "router": {"endpointPicker": {"proxyNamespaces": ["edge"]}},
}


def theirs(*ports: int, name: str = "theirs", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """An InferencePool of the Gateway API that Plumage did not make."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": "5"},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "chat-picker", "port": {"number": 9002}},
            **spec,
        },
    }


def world(external: dict[str, Any] | None, spec: dict[str, Any] | None = None) -> World:
    made = World(pool_object(spec or SPEC))
    made.external = external
    made.converge()
    return made


def seen(ready: int, total: int) -> ScalingDecision:
    return ScalingDecision(0, "False", "Manual", "", fields={"replicas": total, "readyReplicas": ready})


def settings(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.objects["ConfigMap", "chat-router"]["data"]["router.json"])
    return found


def test_pool_has_routers_and_a_directory_and_the_service_of_the_engines() -> None:
    pool = world(theirs(9000))
    assert {kind for kind, name in pool.objects if name == "chat-engine"} == {"Service"}
    assert {name for kind, name in pool.objects if kind == "Deployment"} == {"chat-router", "chat-directory"}
    service = pool.objects["Service", "chat-engine"]["spec"]
    assert service["selector"] == {"app": "vllm"}
    (port,) = service["ports"]
    assert (port["name"], port["targetPort"], service["clusterIP"]) == ("http", 9000, "None")
    assert settings(pool)["membership"]["endpointSlices"]["service"] == "chat-engine"


def test_service_follows_the_inference_pool_and_outlives_it() -> None:
    pool = world(None)
    assert ("Service", "chat-engine") not in pool.objects
    pool.external = theirs(9000)
    pool.converge()
    pool.external = theirs(9001, labels={"app": "other"})
    pool.converge()
    for external in (None, theirs(1, 2), theirs(7, appProtocol="kubernetes.io/h2c")):
        pool.external = external
        pool.converge()
        service = pool.objects["Service", "chat-engine"]["spec"]
        assert (service["selector"], service["ports"][0]["targetPort"]) == ({"app": "other"}, 9001), "stale, not none"


def test_pool_changes_from_own_engines_to_external_ones_and_back() -> None:
    own = {"model": {"uri": "builtin://tiny-llama"}, "replicas": 1}
    pool = world(None, own)
    before = set(pool.objects)
    pool.pool["spec"] = {**own, "engine": SPEC["engine"]}
    pool.converge()
    assert ("Service", "chat-engine") not in pool.objects, "its selector is that of the engines which were deleted"
    pool.external = theirs(9000)
    pool.converge()
    assert pool.objects["Service", "chat-engine"]["spec"]["selector"] == {"app": "vllm"}
    pool.pool["spec"] = own
    pool.converge()
    assert set(pool.objects) == before


def test_owner_without_reports_counts_for_longer() -> None:
    assert settings(world(theirs(9000)))["timeouts"]["pendingOwner"] == 60
    lbgr = {"router": {"lbgr": {"pendingOwnerSeconds": 10}}}
    assert settings(world(theirs(9000), {**SPEC, **lbgr}))["timeouts"]["pendingOwner"] == 10
    assert settings(world(None, {"model": {"uri": "hf://org/model"}}))["timeouts"]["pendingOwner"] == 10


@pytest.mark.parametrize(
    ("external", "said"),
    [
        (None, "there is no InferencePool.inference.networking.k8s.io theirs in this namespace"),
        (theirs(1, 2), "theirs can't name engines: it has 2 target ports"),
        (theirs(9000, appProtocol="kubernetes.io/h2c"), "its appProtocol is kubernetes.io/h2c"),
    ],
)
def test_inference_pool_that_cannot_be_used_is_reported(external: dict[str, Any] | None, said: str) -> None:
    pool = world(external)
    assert pool.reasons()["EngineReady"] == ("False", "EnginesUnknown")
    assert said in pool.condition("EngineReady")["message"]
    assert pool.reasons()["Ready"] == ("False", "EnginesUnknown")
    assert pool.reasons()["Accepted"] == ("True", "Valid")


def test_conditions_follow_the_routers_reports() -> None:
    pool = world(theirs(9000))
    assert "their owner chooses how many there are" in pool.condition("Scaling")["message"]
    assert pool.reasons()["EngineReady"] == ("False", "Starting")
    pool.scaling = ScalingDecision(0, "False", "Manual", "")
    pool.converge()
    assert pool.reasons()["EngineReady"] == ("False", "Starting")
    pool.scaling = seen(0, 2)
    pool.converge()
    assert pool.reasons()["EngineReady"] == ("False", "NoEngine")
    pool.scaling = seen(1, 2)
    pool.converge()
    assert pool.condition("EngineReady")["message"] == "1 of 2 engines can get requests, as the routers report"
    assert pool.reasons()["Ready"] == ("True", "Serving")
    assert (pool.pool["status"]["replicas"], pool.pool["status"]["readyReplicas"]) == (2, 1)
    assert pool.pool["status"]["desiredReplicas"] == 0
    assert pool.reasons()["Progressing"] == ("False", "Settled")
    pool.scaling = None  # a new operator gathers reports
    pool.converge()
    assert pool.reasons()["Ready"] == ("True", "Serving")
    assert pool.plan() == ()


def test_engine_fields_without_effect_are_named() -> None:
    engine = {
        **SPEC["engine"],
        "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example"}],
        "batchLimit": "Static",
    }
    accepted = world(theirs(9000), {**SPEC, "engine": engine}).condition("Accepted")
    assert accepted["message"].startswith("spec.engine.batchLimit has no effect with engine.external")
    assert world(theirs(9000)).condition("Accepted")["message"] == ""


def test_keys_are_made_once() -> None:
    pool = World(pool_object(SPEC))
    assert [type(action) for action in plan_key_secret(pool.observed(), CONFIG)] == [CreateSecret]
    assert plan_key_secret(world(theirs(9000)).observed(), CONFIG) == ()


def test_another_inference_pool_is_another_fingerprint() -> None:
    pool = world(theirs(9000))
    before = fingerprint_of(pool.observed())
    pool.external = theirs(9001)
    assert fingerprint_of(pool.observed()) != before
    pool.external = {**theirs(9000), "status": {"parents": []}}
    assert fingerprint_of(pool.observed()) == before, "Gateways write its status"


def test_store_joins_pool_and_inference_pool() -> None:
    store = Store()
    store.put(pool_object(SPEC))
    observed = store.observe(("default", "chat"))
    assert observed is not None
    assert observed.external is None
    assert store.put(theirs(9000)) is None, "it is no child"
    assert store.pools_on(theirs(9000)) == [("default", "chat")]
    assert store.pools_on(theirs(9000, name="other")) == []
    assert store.pools_on(pool_object(SPEC)) == []
    observed = store.observe(("default", "chat"))
    assert observed is not None
    assert observed.external is not None
    assert observed.external["spec"] == theirs(9000)["spec"]
    assert observed.children == {}
    assert store.forget("InferencePool.inference.networking.k8s.io", {("default", "theirs")}) == {("default", "chat")}
    observed = store.observe(("default", "chat"))
    assert observed is not None
    assert observed.external is None
    store.put(pool_object({"model": {"uri": "hf://org/model"}}, resourceVersion="2"))
    assert store.pools_on(theirs(9000)) == []


def report(*states: str, listed: bool = True) -> ReportWindow[RouterReport]:
    window: ReportWindow[RouterReport] = ReportWindow()
    replicas = [ReplicaReport(f"pod-{number}", state) for number, state in enumerate(states)]
    window.add(RouterReport("chat", "router", listed=listed, replicas=replicas), 1.0)
    return window


def test_engines_are_counted_as_the_best_informed_router_sees_them() -> None:
    assert engines_seen([]) == engines_seen([ReportWindow()]) == engines_seen([report(listed=False)]) == {}
    assert engines_seen([report()]) == {"replicas": 0, "readyReplicas": 0}
    both = [report("Ready", "Unhealthy"), report("Ready", "Ready", "Warming")]
    assert engines_seen(both) == {"replicas": 3, "readyReplicas": 2}


def test_scaler_passes_the_counts_to_the_status() -> None:
    pool = world(theirs(9000))
    scaler = PoolScaler("pool-uid")
    observed = pool.observed()
    assert read_pool(observed.pool).spec.engine.external is not None
    pods = scaler.pods(observed)
    scaler.reports.routers["router"] = report("Ready")
    assert scaler.decision(observed) is None, "nothing was polled"
    scaler.decide(observed, pods, 1.0)
    decision = scaler.decision(observed)
    assert decision is not None
    assert (decision.desired, decision.fields) == (0, {"replicas": 1, "readyReplicas": 1})
