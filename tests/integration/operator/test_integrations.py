"""HTTPRoutes, PodMonitors and published InferencePools, made by an operator process with the chart's rights. Also what
is left of an Ingress when such a right is removed.

This file has its own cluster: it gets the definitions of these kinds, by their projects. No controller handles them
here, so the tests write what a gateway's controller would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.charts import CHART, Rendered
from support.kube import served
from support.needs import missing, module
from support.operator_fleet import USER, Fleet, condition, events, pool

from plumage.endpoint_slices import SERVICE_LABEL, members_of
from plumage_operator.kinds import INTEGRATIONS, Integration

pytestmark = pytest.mark.api_server  # an operator of its own

ALL = [one.switch for one in INTEGRATIONS]
ROUTE, MONITOR = "httproutes.gateway.networking.k8s.io", "podmonitors.monitoring.coreos.com"
ASKS = """
  replicas: 1
  router: {{httpRoute: {{parentRefs: [{{name: edge, namespace: gateways}}], hostnames: [{host}]}}}}
  monitoring: {{enabled: true, intervalSeconds: {seconds}, labels: {{release: prometheus}}}}"""
ANSWER = {
    "controllerName": "example.com/gateway",
    "parentRef": {"name": "edge"},
    "conditions": [
        {
            "type": "Accepted",
            "status": "True",
            "reason": "Accepted",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
"""The name of a gateway's controller, in the route's status."""
PUBLISHED = "inferencepools.inference.networking.k8s.io"
PUBLISHES = """
  replicas: 1
  router: {{endpointPicker: {{port: 9100, proxyNamespaces: [edge], inferencePool: {{failureMode: {mode}}}}}}}"""
EXTERNAL = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: hf://org/model}
  engine: {external: {inferencePoolRef: {name: theirs}}}
"""
PLAIN = "  replicas: 1"
EXPOSED = "  replicas: 1\n  router: {ingress: {host: chat.example}}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Without an operator yet, and without the definition of the Gateway API's InferencePool."""
    from cluster.kinds import HTTP_ROUTES, POD_MONITORS

    with served() as server:
        for wanted in (HTTP_ROUTES, POD_MONITORS):
            define(server, wanted)
        fleet = Fleet(server, tmp_path_factory.mktemp("operator"))
        fleet.install()
        yield fleet
        for name in list(fleet.operators):
            fleet.stop(name, kill=True)


def define(server: Any, wanted: Any) -> None:
    """Applies the definition of a kind."""
    from cluster.errors import NotHereError
    from cluster.kinds import definition

    try:
        server.kubectl("apply", "--server-side", "-f", str(definition(wanted)))
    except NotHereError as error:
        missing(f"the definition in {wanted.file}", str(error))
    server.established()


def upgrade(fleet: Fleet, *switches: str) -> None:
    """Restarts the operator with the role and the setting that the chart makes of these switches under
    `integrations`."""
    with module("helm_python").Chart.load(CHART) as chart:
        values = {"integrations": dict.fromkeys(switches, True)}
        rendered = Rendered(chart.render(values, name="plumage", namespace="plumage-system"))
    for name in list(fleet.operators):
        fleet.stop(name)
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(rendered.one("ClusterRole", "plumage-operator")))
    for one in INTEGRATIONS:
        right = one.switch in switches
        fleet.until(lambda one=one, right=right: may_delete(fleet, one) is right)
    (container,) = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value", "") for one in container["env"]}
    fleet.start(PLUMAGE_INTEGRATIONS=variables.get("PLUMAGE_INTEGRATIONS", ""))


def may_delete(fleet: Fleet, kind: Integration) -> bool:
    """`kubectl auth can-i` does not know a resource before its definition is there."""
    asked = {"namespace": "default", "verb": "delete", "group": kind.group, "resource": kind.plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "resourceAttributes": asked},
    }
    answer = json.loads(fleet.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


def apply(fleet: Fleet, namespace: str, spec: str) -> None:
    """Applies the pool, and waits until the operator has reconciled it."""
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(spec))
    generation = fleet.get(namespace, "ppool", "chat")["metadata"]["generation"]
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("observedGeneration") == generation)


def spec_of(fleet: Fleet, namespace: str, kind: str, name: str) -> dict[str, Any]:
    """Empty where there is none."""
    return dict(fleet.get(namespace, kind, name).get("spec", {}))


def has_event(fleet: Fleet, namespace: str, reason: str, what: str) -> bool:
    return any(one == reason and what in said for one, said in events(fleet, namespace))


@pytest.mark.timeout(300)
def test_route_and_monitors_follow_spec(fleet: Fleet, namespace: str) -> None:
    upgrade(fleet, *ALL)
    apply(fleet, namespace, ASKS.format(host="chat.example", seconds=30))
    assert condition(fleet, namespace, "Accepted")["status"] == "True"
    route = fleet.get(namespace, ROUTE, "chat-router")
    (parent,), (rule,) = route["spec"]["parentRefs"], route["spec"]["rules"]
    assert (parent["name"], parent["namespace"]) == ("edge", "gateways")
    (backend,) = rule["backendRefs"]
    assert (backend["name"], backend["port"]) == ("chat-router", 8000)
    monitors = fleet.get(namespace, MONITOR)["items"]
    assert {one["metadata"]["name"] for one in monitors} == {"chat-engine", "chat-router"}
    uid = fleet.get(namespace, "ppool", "chat")["metadata"]["uid"]
    for one in (route, *monitors):
        assert [(owner["uid"], owner["controller"]) for owner in one["metadata"]["ownerReferences"]] == [(uid, True)]
    assert all(one["metadata"]["labels"]["release"] == "prometheus" for one in monitors)

    status = json.dumps({"status": {"parents": [ANSWER]}})
    fleet.kubectl("-n", namespace, "patch", ROUTE, "chat-router", "--subresource=status", "--type=merge", "-p", status)
    apply(fleet, namespace, ASKS.format(host="new.example", seconds=15))
    after = fleet.get(namespace, ROUTE, "chat-router")
    assert after["spec"]["hostnames"] == ["new.example"]
    assert after["metadata"]["uid"] == route["metadata"]["uid"]
    assert after["status"]["parents"][0]["controllerName"] == "example.com/gateway", "the gateway's own word stays"
    for name in ("chat-engine", "chat-router"):
        ends = spec_of(fleet, namespace, MONITOR, name)["podMetricsEndpoints"]
        assert {end["interval"] for end in ends} == {"15s"}
    assert not has_event(fleet, namespace, "ChildRepaired", ""), (
        "defaults that the server wrote do not count as an edit"
    )

    theirs = json.dumps({"spec": {"hostnames": ["theirs.example"]}})
    fleet.kubectl("-n", namespace, "patch", ROUTE, "chat-router", "--type=merge", "-p", theirs)
    fleet.until(lambda: spec_of(fleet, namespace, ROUTE, "chat-router")["hostnames"] == ["new.example"])
    fleet.until(lambda: has_event(fleet, namespace, "ChildRepaired", "HTTPRoute chat-router"))
    path, other = "/spec/rules/0/backendRefs/-", {"name": "theirs", "port": 80}
    added = json.dumps([{"op": "add", "path": path, "value": other}])
    fleet.kubectl("-n", namespace, "patch", ROUTE, "chat-router", "--type=json", "-p", added)
    fleet.until(lambda: spec_of(fleet, namespace, ROUTE, "chat-router")["rules"][0]["backendRefs"] == [backend])
    added = json.dumps({"spec": {"selector": {"matchLabels": {"theirs": "1"}}}})
    fleet.kubectl("-n", namespace, "patch", MONITOR, "chat-router", "--type=merge", "-p", added)
    fleet.until(lambda: has_event(fleet, namespace, "ChildRepaired", "spec.selector.matchLabels.theirs"))
    fleet.kubectl("-n", namespace, "delete", MONITOR, "chat-engine")
    fleet.until(lambda: spec_of(fleet, namespace, MONITOR, "chat-engine"))
    fleet.until(lambda: has_event(fleet, namespace, "ChildRecreated", "PodMonitor chat-engine"))

    apply(fleet, namespace, PLAIN)
    assert condition(fleet, namespace, "Accepted")["status"] == "True"
    assert fleet.get(namespace, f"{ROUTE},{MONITOR}")["items"] == []
    assert "forbidden" not in fleet.log()


@pytest.mark.timeout(300)
def test_removed_permission_keeps_existing_objects(fleet: Fleet, namespace: str) -> None:
    upgrade(fleet, "ingress")
    apply(fleet, namespace, EXPOSED)
    assert spec_of(fleet, namespace, "ingress", "chat-router")

    upgrade(fleet)
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("reason") == "ChildRefused")
    said = condition(fleet, namespace, "Ready")["message"]
    assert "helm upgrade with integrations.ingress=true" in said
    assert "Or remove spec.router.ingress, and delete the object that was made for it." in said
    apply(fleet, namespace, PLAIN)
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("status") == "True")
    assert spec_of(fleet, namespace, "ingress", "chat-router"), "as docs/how-to/install.md warns"

    upgrade(fleet, "ingress")
    fleet.until(lambda: not spec_of(fleet, namespace, "ingress", "chat-router"))


@pytest.mark.timeout(300)
def test_published_pool_needs_its_definition_and_follows_spec(fleet: Fleet, namespace: str) -> None:
    from cluster.kinds import INFERENCE_POOLS

    upgrade(fleet, *ALL)
    apply(fleet, namespace, PUBLISHES.format(mode="FailClose"))
    accepted = condition(fleet, namespace, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildRefused")
    assert "Is kind InferencePool.inference.networking.k8s.io installed in this cluster?" in accepted["message"]
    remedy = "Install its CRD, then restart the operator. Or remove spec.router.endpointPicker.inferencePool."
    assert remedy in accepted["message"]
    assert condition(fleet, namespace, "Published")["reason"] == "NotPublished"

    define(fleet.server, INFERENCE_POOLS)
    upgrade(fleet, *ALL)
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("status") == "True")
    published = fleet.get(namespace, PUBLISHED, "chat")
    uid = fleet.get(namespace, "ppool", "chat")["metadata"]["uid"]
    assert [(one["uid"], one["controller"]) for one in published["metadata"]["ownerReferences"]] == [(uid, True)]
    reference = {"name": "chat-picker", "group": "", "kind": "Service", "failureMode": "FailClose"}
    assert published["spec"]["endpointPickerRef"] == {**reference, "port": {"number": 9100}}
    labels = {"inference.plumage.dev/pool": "chat", "app.kubernetes.io/component": "engine"}
    assert published["spec"]["selector"] == {"matchLabels": labels}
    ports = fleet.get(namespace, "service", reference["name"])["spec"]["ports"]
    assert 9100 in [one["port"] for one in ports]
    assert condition(fleet, namespace, "Published")["reason"] == "NoParent"

    parent = {"parentRef": {"name": "edge", "namespace": "gateways"}, "conditions": ANSWER["conditions"]}
    status = json.dumps({"status": {"parents": [parent]}})
    fleet.kubectl("-n", namespace, "patch", PUBLISHED, "chat", "--subresource=status", "--type=merge", "-p", status)
    fleet.until(lambda: condition(fleet, namespace, "Published").get("status") == "True")
    assert condition(fleet, namespace, "Published")["message"] == "accepted by Gateway gateways/edge"

    apply(fleet, namespace, PUBLISHES.format(mode="FailOpen"))
    after = fleet.get(namespace, PUBLISHED, "chat")
    assert after["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    assert after["metadata"]["uid"] == published["metadata"]["uid"]
    assert after["status"]["parents"][0]["parentRef"]["name"] == "edge", "the gateway's own word stays"
    assert not has_event(fleet, namespace, "ChildRepaired", ""), "defaults of the definition do not count as an edit"

    theirs = {"selector": {"matchLabels": {"example.com/theirs": "1"}}, "endpointPickerRef": {"name": "theirs"}}
    edit = json.dumps({"spec": theirs})
    fleet.kubectl("-n", namespace, "patch", PUBLISHED, "chat", "--type=merge", "-p", edit)
    fleet.until(lambda: spec_of(fleet, namespace, PUBLISHED, "chat") == after["spec"])
    fleet.until(lambda: has_event(fleet, namespace, "ChildRepaired", "spec.selector.matchLabels.example.com/theirs"))
    fleet.kubectl("-n", namespace, "delete", PUBLISHED, "chat")
    fleet.until(lambda: spec_of(fleet, namespace, PUBLISHED, "chat"))
    fleet.until(lambda: has_event(fleet, namespace, "ChildRecreated", "InferencePool.inference.networking.k8s.io chat"))

    apply(fleet, namespace, PLAIN)
    fleet.until(lambda: not spec_of(fleet, namespace, PUBLISHED, "chat"))
    assert not condition(fleet, namespace, "Published")
    apply(fleet, namespace, PUBLISHES.format(mode="FailClose"))
    assert spec_of(fleet, namespace, PUBLISHED, "chat")
    fleet.kubectl("-n", namespace, "delete", "ppool", "chat")
    fleet.until(lambda: not spec_of(fleet, namespace, PUBLISHED, "chat"), "collected with its owner")
    assert not [line for line in fleet.log().splitlines() if namespace in line and "cannot" in line], (
        "its rights suffice"
    )


@pytest.mark.timeout(300)
def test_published_pool_of_somebody_else_is_left_alone(fleet: Fleet, namespace: str) -> None:
    from cluster.kinds import INFERENCE_POOLS

    define(fleet.server, INFERENCE_POOLS)
    upgrade(fleet, *ALL)
    spec = {"selector": {"matchLabels": {"app": "theirs"}}, "targetPorts": [{"number": 8000}]}
    picker = {"name": "theirs", "port": {"number": 9002}}
    theirs = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "chat"},
        "spec": {**spec, "endpointPickerRef": picker},
    }
    fleet.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(theirs))
    apply(fleet, namespace, PUBLISHES.format(mode="FailClose"))
    accepted = condition(fleet, namespace, "Accepted")
    assert accepted["reason"] == "NameTaken"
    assert "InferencePool.inference.networking.k8s.io chat exists and is not the pool's" in accepted["message"]
    assert spec_of(fleet, namespace, PUBLISHED, "chat")["endpointPickerRef"]["name"] == "theirs"
    apply(fleet, namespace, PLAIN)
    fleet.kubectl("-n", namespace, "delete", "ppool", "chat")
    assert spec_of(fleet, namespace, PUBLISHED, "chat"), "not the pool's"


@pytest.mark.timeout(300)
def test_external_engines_are_the_pods_that_an_inference_pool_selects(fleet: Fleet, namespace: str) -> None:
    from cluster.kinds import INFERENCE_POOLS

    define(fleet.server, INFERENCE_POOLS)
    upgrade(fleet, *ALL)
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=EXTERNAL)
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "EnginesUnknown")
    assert not spec_of(fleet, namespace, "service", "chat-engine")

    for name, app, address in (("a", "vllm", "10.9.8.1"), ("b", "vllm", "10.9.8.2"), ("c", "other", "10.9.8.3")):
        run_pod(fleet, namespace, name, app, address)
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(inference_pool("vllm", 9000)))
    fleet.until(lambda: engines(fleet, namespace) == {"a": "http://10.9.8.1:9000", "b": "http://10.9.8.2:9000"})
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "Starting")
    made = fleet.get(namespace, "deployment,serviceaccount,configmap", "-l", "inference.plumage.dev/pool=chat")["items"]
    assert {one["metadata"]["name"] for one in made} == {"chat-router", "chat-directory"}
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(inference_pool("other", 9001)))
    fleet.until(lambda: engines(fleet, namespace) == {"c": "http://10.9.8.3:9001"})
    assert spec_of(fleet, namespace, PUBLISHED, "theirs")["endpointPickerRef"]["name"] == "chat-picker", (
        "it is not ours"
    )

    fleet.kubectl("-n", namespace, "delete", PUBLISHED, "theirs")
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "EnginesUnknown")
    assert engines(fleet, namespace) == {"c": "http://10.9.8.3:9001"}, "stale members are better than none"
    assert "The routers keep the pods of before" in condition(fleet, namespace, "EngineReady")["message"]
    assert not [line for line in fleet.log().splitlines() if namespace in line and "cannot" in line], (
        "its rights suffice"
    )


def inference_pool(app: str, port: int) -> dict[str, Any]:
    """Of somebody else."""
    picker = {"name": "chat-picker", "port": {"number": 9002}}
    spec = {"selector": {"matchLabels": {"app": app}}, "targetPorts": [{"number": port}], "endpointPickerRef": picker}
    kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    return {**kind, "metadata": {"name": "theirs"}, "spec": spec}


def run_pod(fleet: Fleet, namespace: str, name: str, app: str, address: str) -> None:
    """A pod without a node, with the status that a kubelet would write."""
    spec = {"containers": [{"name": "engine", "image": "vllm:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
    fleet.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(pod))
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
    patch = json.dumps({"status": status})
    fleet.kubectl("-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch)


def engines(fleet: Fleet, namespace: str) -> dict[str, str]:
    """The replicas that a router would find, with their addresses."""
    slices = fleet.get(namespace, "endpointslices", "-l", f"{SERVICE_LABEL}=chat-engine")["items"]
    return {one.id: one.url for one in members_of(slices) if one.state == "Ready"}
