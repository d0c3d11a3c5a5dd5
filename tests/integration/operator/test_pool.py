"""A pool on a real API server, with exactly the rights of the operator's role. No program runs there: pods stay
Pending, and tests write the status that kubelets would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.operator_fleet import USER, Fleet, children, condition, events, made, pool

INGRESS = "  replicas: 1\n  router: {ingress: {host: HOST}}"


@pytest.fixture
def apply(fleet, namespace):
    def applied(spec: str = "  replicas: 2", name: str = "chat") -> None:
        fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(spec, name))

    return applied


def test_pool_owns_its_children(fleet, namespace, apply) -> None:
    apply()
    found = made(fleet, namespace)
    assert {kind for kind, _ in found} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "RoleBinding", "Service", "ServiceAccount",
    }  # fmt: skip
    assert len(found) == 17
    uid = fleet.get(namespace, "ppool", "chat")["metadata"]["uid"]
    for child in found.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    for kind, name in found:
        assert ("plumage", "Update") in managers(fleet, namespace, kind, name), "created, as nobody's object can be"
    status = fleet.get(namespace, "ppool", "chat")["status"]
    assert status["observedGeneration"] == 1
    assert condition(fleet, namespace, "Ready")["reason"] == "Starting"
    assert "finalizers" not in fleet.get(namespace, "ppool", "chat")["metadata"]


def managers(fleet: Any, namespace: str, kind: str, name: str) -> set[tuple[str, str]]:
    """The managers of an object's fields, and how they wrote them."""
    entries = fleet.get(namespace, kind, name, "--show-managed-fields")["metadata"]["managedFields"]
    return {(one["manager"], one["operation"]) for one in entries if not one.get("subresource")}


def test_created_child_is_applied_at_first_change(fleet, namespace, apply) -> None:
    engine = "{runtime: Simulator, nodeSelector: {disk: fast}}"
    apply(f"  replicas: 2\n  engine: {engine}")
    made(fleet, namespace)
    before = children(fleet, namespace)["Deployment", "chat-engine"]
    assert before["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    apply("  replicas: 3")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 3)
    after = children(fleet, namespace)["Deployment", "chat-engine"]
    assert "nodeSelector" not in after["spec"]["template"]["spec"], "a field that is no longer asked for goes"
    ours = {how for who, how in managers(fleet, namespace, "deployment", "chat-engine") if who == "plumage"}
    assert ours == {"Apply"}
    given = after["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert given == before["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_binding_of_another_role_is_recreated(fleet, namespace, apply) -> None:
    """Every binding is of another role after the routers' role was renamed. The role of a binding can't be changed."""
    apply()
    made(fleet, namespace)
    pause = "inference.plumage.dev/paused"
    fleet.kubectl("-n", namespace, "annotate", "ppool", "chat", f"{pause}=true")
    fleet.until(lambda: condition(fleet, namespace, "Paused").get("status") == "True")
    binding = children(fleet, namespace)["RoleBinding", "chat-router"]
    theirs = {**binding, "roleRef": {**binding["roleRef"], "name": "view"}}
    for name in ("uid", "resourceVersion", "managedFields", "creationTimestamp"):
        theirs["metadata"].pop(name, None)
    fleet.kubectl("-n", namespace, "replace", "--force", "-f", "-", stdin=json.dumps(theirs))
    fleet.kubectl("-n", namespace, "annotate", "ppool", "chat", f"{pause}-")
    fleet.until(lambda: children(fleet, namespace)["RoleBinding", "chat-router"]["roleRef"] == binding["roleRef"])
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("status") == "True")


def test_unchanged_pool_causes_no_writes(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    fleet.until(lambda: fleet.get(namespace, "ppool", "chat")["status"].get("replicas") == 2)

    def versions() -> dict[Any, str]:
        things = {**children(fleet, namespace), "pool": fleet.get(namespace, "ppool", "chat")}
        return {key: thing["metadata"]["resourceVersion"] for key, thing in things.items()}

    before = versions()
    fleet.kubectl("-n", namespace, "annotate", "ppool", "chat", "look=again")  # a reconcile without a reason to change
    fleet.kubectl("-n", namespace, "label", "configmap", "chat-router", "theirs=kept")
    fleet.until(lambda: versions()["ConfigMap", "chat-router"] != before["ConfigMap", "chat-router"])
    after = versions()
    different = {key for key in before if before[key] != after[key]}
    assert different == {"pool", ("ConfigMap", "chat-router")}  # only this test does
    assert children(fleet, namespace)["ConfigMap", "chat-router"]["metadata"]["labels"]["theirs"] == "kept"


def test_edited_and_deleted_children_are_repaired_and_reported(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    fleet.kubectl("-n", namespace, "scale", "deployment", "chat-engine", "--replicas=7")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 2)
    fleet.until(lambda: any(reason == "ChildRepaired" and "spec.replicas" in said
                            for reason, said in events(fleet, namespace)))  # fmt: skip
    fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
    fleet.until(lambda: ("Service", "chat-router") in children(fleet, namespace))
    fleet.until(lambda: any(reason == "ChildRecreated" for reason, _ in events(fleet, namespace)))


def test_isolated_pod_is_no_longer_reported(fleet, namespace, apply) -> None:
    """A user removes a label to inspect the pod: its ReplicaSet makes another, and a watch reports a change, not a
    deletion."""
    apply("  replicas: 1")
    made(fleet, namespace)
    chosen = "app.kubernetes.io/component=engine,inference.plumage.dev/pool=chat"

    def engines() -> list[str]:
        return [pod["metadata"]["name"] for pod in fleet.get(namespace, "pods", "-l", chosen)["items"]]

    def reported() -> str:
        return str(condition(fleet, namespace, "EngineReady").get("message", ""))

    (pod,) = fleet.until(engines)
    waiting = {"name": "engine", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0,
               "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}  # fmt: skip
    status = json.dumps({"status": {"containerStatuses": [waiting]}})
    fleet.kubectl("-n", namespace, "patch", "pod", pod, "--subresource=status", "-p", status)
    fleet.until(lambda: pod in reported())
    fleet.kubectl("-n", namespace, "label", "pod", pod, "inference.plumage.dev/pool-")
    fleet.until(lambda: pod not in reported() and engines() not in ([], [pod]))
    fleet.kubectl("-n", namespace, "delete", "pod", pod, "--now")


def test_scale_uses_subresource(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=3")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 3)
    fleet.until(lambda: fleet.get(namespace, "ppool", "chat")["status"].get("desiredReplicas") == 3)
    scale = json.loads(
        fleet.kubectl(
            "get", "--raw", f"/apis/inference.plumage.dev/v1alpha1/namespaces/{namespace}/inferencepools/chat/scale"
        )
    )
    assert scale["status"]["selector"] == "app.kubernetes.io/component=engine,inference.plumage.dev/pool=chat"


def test_deleted_pool_leaves_nothing(fleet, namespace, apply) -> None:
    apply()
    assert made(fleet, namespace)
    fleet.kubectl("-n", namespace, "delete", "ppool", "chat", "--timeout=30s")
    fleet.until(lambda: not children(fleet, namespace))


def test_child_dropped_from_spec_is_deleted(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    apply("  replicas: 2\n  directory: {redisRef: {url: 'redis://cache:6379'}}\n  networkPolicy: {enabled: false}")
    fleet.until(lambda: ("Deployment", "chat-directory") not in children(fleet, namespace))
    fleet.until(lambda: not [key for key in children(fleet, namespace) if key[0] == "NetworkPolicy"])
    fleet.until(lambda: condition(fleet, namespace, "DirectoryReady").get("reason") == "External")


def test_service_of_the_endpoint_picker_follows_spec(fleet, namespace, apply) -> None:
    apply("  router: {service: {type: NodePort}, endpointPicker: {port: 9100}}")
    fleet.until(lambda: ("Service", "chat-picker") in children(fleet, namespace))
    service = children(fleet, namespace)["Service", "chat-picker"]
    (port,) = service["spec"]["ports"]
    assert (service["spec"]["type"], port["port"]) == ("ClusterIP", 9100)
    assert "picker" not in json.dumps(children(fleet, namespace)["Service", "chat-router"]["spec"])
    fleet.kubectl("-n", namespace, "delete", "service", "chat-picker")
    fleet.until(lambda: ("Service", "chat-picker") in children(fleet, namespace))
    apply("  router: {endpointPicker: {port: 9100}, tls: {secretName: chat-tls}}")
    fleet.until(
        lambda: children(fleet, namespace)["Service", "chat-picker"]["spec"]["ports"][0]["name"] == "picker-tls"
    )
    apply("  replicas: 1")
    fleet.until(lambda: ("Service", "chat-picker") not in children(fleet, namespace))
    assert ("Service", "chat-router") in children(fleet, namespace)


def ingress(fleet: Fleet, namespace: str) -> dict[str, Any]:
    """The pool's Ingress; empty if there is none."""
    return fleet.get(namespace, "ingress", "chat-router")


def host(fleet: Fleet, namespace: str) -> str:
    """The host of the Ingress."""
    rules = ingress(fleet, namespace).get("spec", {}).get("rules", [{}])
    return str(rules[0].get("host", ""))


def test_ingress_follows_spec(fleet, namespace, apply) -> None:
    apply(INGRESS.replace("HOST", "chat.example"))
    fleet.until(lambda: host(fleet, namespace) == "chat.example")
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("status") == "True")
    live = ingress(fleet, namespace)
    (path,) = live["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "chat-router", "port": {"name": "http"}}
    service = children(fleet, namespace)["Service", "chat-router"]
    assert "http" in [port["name"] for port in service["spec"]["ports"]]
    (owner,) = live["metadata"]["ownerReferences"]
    assert owner["uid"] == fleet.get(namespace, "ppool", "chat")["metadata"]["uid"]

    edited = json.dumps([{"op": "replace", "path": "/spec/rules/0/host", "value": "theirs.example"}])
    fleet.kubectl("-n", namespace, "patch", "ingress", "chat-router", "--type=json", "-p", edited)
    fleet.until(lambda: host(fleet, namespace) == "chat.example")
    fleet.until(lambda: any(reason == "ChildRepaired" and "Ingress chat-router" in said
                            for reason, said in events(fleet, namespace)))  # fmt: skip
    apply("  replicas: 1")
    fleet.until(lambda: not ingress(fleet, namespace))
    assert ("Service", "chat-router") in children(fleet, namespace)


@contextmanager
def no_right_to_make_ingresses(fleet: Fleet) -> Iterator[None]:
    """The chart's default rights, but with the watch, which would otherwise lack its right."""
    role = json.loads(fleet.kubectl("get", "clusterrole", "plumage-operator", "-o", "json"))["rules"]
    (rule,) = (one for one in role if "ingresses" in one["resources"])
    others = {**rule, "resources": [one for one in rule["resources"] if one != "ingresses"]}
    less = {**rule, "resources": ["ingresses"], "verbs": [verb for verb in rule["verbs"] if verb != "create"]}

    def give(rules: list[dict[str, Any]], *, right: bool) -> None:
        change = json.dumps({"rules": rules})
        fleet.kubectl("patch", "clusterrole", "plumage-operator", "--type=merge", "-p", change)
        asked = ("auth", "can-i", "create", "ingresses", "-n", "default", f"--as={USER}")
        fleet.until(lambda: (fleet.kubectl(*asked, check=False).strip() == "yes") is right)

    give([*(one for one in role if one is not rule), others, less], right=False)
    try:
        yield
    finally:
        give(role, right=True)


def test_missing_ingress_permission_names_remedy(fleet, namespace, apply) -> None:
    with no_right_to_make_ingresses(fleet):
        apply(INGRESS.replace("HOST", "chat.example"))
        fleet.until(lambda: condition(fleet, namespace, "Accepted").get("reason") == "ChildRefused")
        ready = condition(fleet, namespace, "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "ChildRefused")
        assert 'cannot create resource "ingresses"' in ready["message"]
        assert "helm upgrade with integrations.ingress=true" in ready["message"]
        assert ("Deployment", "chat-router") in children(fleet, namespace)
        assert not ingress(fleet, namespace)
    apply(
        INGRESS.replace("HOST", "new.example")
    )  # causes a reconcile: a change of a role causes no event for the operator
    fleet.until(lambda: host(fleet, namespace) == "new.example")
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("status") == "True")


def test_object_of_another_owner_is_not_adopted(fleet, namespace, apply) -> None:
    fleet.kubectl("-n", namespace, "create", "configmap", "chat-router", "--from-literal=theirs=1")
    apply()
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("reason") == "NameTaken")
    assert "ConfigMap chat-router" in condition(fleet, namespace, "Ready")["message"]
    theirs = fleet.get(namespace, "configmap", "chat-router")
    assert theirs["data"] == {"theirs": "1"}
    assert "ownerReferences" not in theirs["metadata"]
    assert ("Deployment", "chat-engine") in children(fleet, namespace)  # the other objects are made nevertheless


def test_paused_pool_is_not_changed(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    fleet.kubectl("-n", namespace, "annotate", "ppool", "chat", "inference.plumage.dev/paused=true")
    fleet.until(lambda: condition(fleet, namespace, "Paused").get("status") == "True")
    fleet.kubectl("-n", namespace, "delete", "service", "chat-router")

    def status() -> dict[str, Any]:
        return fleet.get(namespace, "ppool", "chat")["status"]

    for replicas in (3, 4):  # each causes a reconcile; by the second one the watch has reported the deleted Service
        fleet.kubectl("-n", namespace, "scale", "ppool/chat", f"--replicas={replicas}")
        generation = fleet.get(namespace, "ppool", "chat")["metadata"]["generation"]
        fleet.until(lambda wanted=generation: status()["observedGeneration"] == wanted)
        assert status()["desiredReplicas"] == 2  # a paused pool keeps its size
        found = children(fleet, namespace)  # a reconcile writes the status last
        assert ("Service", "chat-router") not in found
        assert found["Deployment", "chat-engine"]["spec"]["replicas"] == 2
    chosen = fleet.get(namespace, "pods", "-l", "app.kubernetes.io/component=engine")["items"][0]["metadata"]["name"]
    fleet.kubectl("-n", namespace, "annotate", "pod", chosen, "inference.plumage.dev/cordoned=true")
    fleet.until(lambda: chosen in children(fleet, namespace)["ConfigMap", "chat-router"]["data"]["cordoned.json"])
    assert ("Service", "chat-router") not in children(fleet, namespace)
    fleet.kubectl("-n", namespace, "annotate", "ppool", "chat", "inference.plumage.dev/paused-")
    fleet.until(lambda: condition(fleet, namespace, "Paused").get("status") == "False")
    fleet.until(lambda: ("Service", "chat-router") in children(fleet, namespace))
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 4)


def test_quota_and_its_remedy_are_named(fleet, namespace, apply) -> None:
    fleet.kubectl("-n", namespace, "create", "quota", "small", "--hard=pods=1")
    apply()
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "QuotaExceeded"
                or condition(fleet, namespace, "RouterReady").get("reason") == "QuotaExceeded")  # fmt: skip
    reported = condition(fleet, namespace, "Ready")["message"]
    assert "quota small" in reported
    assert "Raise the quota" in reported


def test_deleted_namespace_causes_no_error(fleet, namespace, apply) -> None:
    apply()
    made(fleet, namespace)
    fleet.kubectl("delete", "namespace", namespace, "--timeout=60s")
    assert "should not happen" not in fleet.log()


def test_long_name_and_long_argument_are_accepted(fleet, namespace) -> None:
    name = "p" + "o" * 51 + "l"  # 53 characters, the longest name with room for -directory
    argument = "--compilation-config=".ljust(1024, "x")
    engine = {"runtime": "VLLM", "args": [argument]}
    manifest = {
        "apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://org/name"}, "engine": engine},
    }  # fmt: skip
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(manifest))
    conditions = fleet.until(lambda: fleet.get(namespace, "ppool", name).get("status", {}).get("conditions"))
    listed = fleet.get(namespace, "deployments", "-l", f"inference.plumage.dev/pool={name}")["items"]
    assert len(listed) == 3, conditions
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in listed}
    (vllm,) = (one for one in pods[f"{name}-engine"]["containers"] if one["name"] == "engine")
    assert vllm["args"][-1] == argument

    engine["args"] = [argument + "x"]
    refused = fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(manifest), check=False)
    assert "1024" in refused
