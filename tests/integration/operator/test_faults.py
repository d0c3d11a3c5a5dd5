"""Faults around a pool: a namespace that takes long to end, an API server that dies during a plan, a wrong clock,
rotated Secrets, names of maximal length."""

from __future__ import annotations

import json
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from support.operator_fleet import SYSTEM, Fleet, children, condition, events, made, pool

from plumage.cluster import LONGEST_POOL_NAME

pytestmark = pytest.mark.timeout(600)

HOLDER = ("-n", SYSTEM, "get", "lease", "plumage-operator", "-o", "jsonpath={.spec.holderIdentity}")
ALL = 17  # children of a pool that `pool` makes
FINALIZER = {"metadata": {"finalizers": ["tests.plumage.dev/held"]}}


@pytest.fixture
def apply(fleet, namespace):
    def applied(spec: str = "  replicas: 2", name: str = "chat") -> None:
        fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(spec, name))

    return applied


def test_lingering_namespace_is_reported_without_retries(fleet: Fleet, namespace: str, apply) -> None:
    """Pods are deleted first and may drain for minutes. During that time the pool exists, and no object may be made for
    it."""
    apply()
    made(fleet, namespace)
    pod = fleet.until(lambda: fleet.get(namespace, "pods").get("items"))[0]["metadata"]["name"]
    fleet.kubectl("-n", namespace, "patch", "pod", pod, "--type=merge", "-p", json.dumps(FINALIZER))
    before = figures(fleet)
    try:
        fleet.kubectl("delete", "namespace", namespace, "--wait=false")
        fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
        fleet.until(lambda: condition(fleet, namespace, "Accepted").get("reason") == "NamespaceTerminating")
        assert "deletionTimestamp" not in fleet.get(namespace, "ppool", "chat")["metadata"], (
            "a deleted pool has no status to report it"
        )
        ready = condition(fleet, namespace, "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NamespaceTerminating")
        assert "the namespace is being deleted" in ready["message"]
        after = figures(fleet)
        assert after.get("bug", 0) == before.get("bug", 0)
        assert after.get("unavailable", 0) == before.get("unavailable", 0), "a refusal is no outage"
        lines = [line for line in fleet.log(running(fleet)).splitlines() if namespace in line]
        assert len(lines) < 20, "\n".join(lines)
    finally:
        none = json.dumps({"metadata": {"finalizers": None}})
        fleet.kubectl("-n", namespace, "patch", "pod", pod, "--type=merge", "-p", none)
    fleet.kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=120s")


def test_conditions_are_on_the_metrics_page(fleet: Fleet, namespace: str, apply) -> None:
    apply()
    name = f'plumage_operator_condition{{kind="InferencePool",object_namespace="{namespace}",name="chat",'
    fleet.until(lambda: f'{name}condition="Ready",status="False",reason="Starting"}} 1' in metrics(fleet))
    assert f'{name}condition="Paused",status="False",reason="NotPaused"}} 1' in metrics(fleet)
    fleet.kubectl("-n", namespace, "delete", "ppool", "chat")
    fleet.until(lambda: name not in metrics(fleet))


def metrics(fleet: Fleet) -> str:
    """The page of the active operator."""
    _, port = fleet.ports[running(fleet)]
    return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=30).text


def figures(fleet: Fleet) -> dict[str, float]:
    """Failed reconciles, by kind."""
    lines = [line for line in metrics(fleet).splitlines() if line.startswith("plumage_operator_errors_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def running(fleet: Fleet) -> str:
    """The active operator."""
    return str(fleet.until(lambda: (name := fleet.kubectl(*HOLDER)) in fleet.operators and name))


def test_plan_completes_after_api_server_is_killed(fleet: Fleet, namespace: str, apply) -> None:
    """The operator is stopped while the half-made pool is counted; otherwise it would complete the pool."""
    for attempt in range(10):
        name = f"half-{attempt}"
        made_before = killed_in_mid_plan(fleet, namespace, lambda name=name: apply(name=name), name)
        if 0 < made_before < ALL:
            break
    assert 0 < made_before < ALL

    def whole() -> bool:
        fleet.keep_up()
        return count(fleet, namespace, name) == ALL and bool(ready_conditions(fleet, namespace, name))

    fleet.until(whole)
    assert "should not happen" not in "".join(fleet.log(name) for name in fleet.operators)


def killed_in_mid_plan(fleet: Fleet, namespace: str, apply: Any, name: str) -> int:
    """Returns the number of children."""
    operator = fleet.operators[running(fleet)]
    plane = fleet.server.plane
    watch = [str(plane.programs["kubectl"]), f"--kubeconfig={plane.kubeconfig}", "-n", namespace]
    selected = f"inference.plumage.dev/pool={name}"
    with subprocess.Popen([*watch, "get", "deployments", "-l", selected, "--watch", "-o", "name"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as watching:  # fmt: skip
        apply()
        assert watching.stdout is not None
        watching.stdout.readline()  # the directory's Deployment, the fourth of all children
        fleet.server.processes.stop("apiserver", signal.SIGKILL)
        operator.send_signal(signal.SIGSTOP)
        watching.kill()
    try:
        fleet.server.start("apiserver")
        return count(fleet, namespace, name)
    finally:
        operator.send_signal(signal.SIGCONT)


def count(fleet: Fleet, namespace: str, name: str) -> int:
    kinds = "deployments,services,configmaps,serviceaccounts,poddisruptionbudgets,networkpolicies,rolebindings"
    return len(fleet.get(namespace, kinds, "-l", f"inference.plumage.dev/pool={name}").get("items", []))


def ready_conditions(fleet: Fleet, namespace: str, name: str) -> list[dict[str, Any]]:
    found = fleet.get(namespace, "ppool", name).get("status", {}).get("conditions", [])
    return [one for one in found if one["type"] == "Ready"]


def test_operator_with_wrong_clock_keeps_lease_rules(fleet: Fleet, namespace: str, apply) -> None:
    for name in list(fleet.operators):
        fleet.stop(name)
    fleet.start("ahead", ahead=3600.0)
    fleet.until(lambda: fleet.kubectl(*HOLDER) == "ahead")
    apply()
    assert len(made(fleet, namespace)) == ALL
    written = datetime.fromisoformat(condition(fleet, namespace, "Ready")["lastTransitionTime"])
    assert written > datetime.now(UTC) + timedelta(minutes=50), "its clock is off indeed"

    fleet.start("right")
    fleet.until(lambda: "waiting: ahead is active" in fleet.log("right"))
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=3")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 3)
    assert fleet.kubectl(*HOLDER) == "ahead", "who is an hour behind takes its renewals for no older than they are"

    fleet.stop("ahead", kill=True)  # it does not release the Lease, and its last renewal is an hour in the future
    fleet.until(lambda: fleet.kubectl(*HOLDER) == "right")
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=4")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 4)
    fleet.until(lambda: fleet.get(namespace, "ppool", "chat")["status"].get("desiredReplicas") == 4)


def test_longest_pool_name_gives_valid_names_and_labels(fleet: Fleet, namespace: str, apply) -> None:
    name = "p" * LONGEST_POOL_NAME
    apply(name=name)
    fleet.until(lambda: count(fleet, namespace, name) == ALL and ready_conditions(fleet, namespace, name))
    pods = fleet.until(
        lambda: len(found := fleet.get(namespace, "pods").get("items", [])) == 5 and found
    )  # two engines, two routers, a directory: no pod was refused
    assert all(len(one["metadata"]["name"]) <= 63 for one in pods)
    assert all(len(value) <= 63 for one in pods for value in one["metadata"]["labels"].values())
    assert any(name in one["involvedObject"]["name"] for one in fleet.get(namespace, "events")["items"])

    refused = fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(name=name + "p"), check=False)
    assert f"must be a name of at most {LONGEST_POOL_NAME} characters" in refused


SECRETS = """
  replicas: 1
  router: {auth: {apiKeysRef: {name: keys, key: keys}, adminKeyRef: {name: admin, key: key}}}
  directory: {redisRef: {url: 'redis://cache:6379', passwordRef: {name: cache, key: password}}}
"""


def test_rotated_secret_is_renewed_in_mounts_without_rollout(fleet: Fleet, namespace: str, apply) -> None:
    """The operator may not read Secrets, so it can not see the change. The kubelet updates the mounted files, and their
    readers read them again."""
    made_of = {"keys": "keys", "admin": "key", "cache": "password"}
    for name, key in made_of.items():
        fleet.kubectl("-n", namespace, "create", "secret", "generic", name, f"--from-literal={key}=first")
    apply(SECRETS)
    made(fleet, namespace)
    before = templates(fleet, namespace)
    for name, key in made_of.items():
        change = json.dumps({"stringData": {key: "second"}})
        fleet.kubectl("-n", namespace, "patch", "secret", name, "--type=merge", "-p", change)
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=2")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 2)
    assert templates(fleet, namespace) == before
    mounts = [mount for pod in before.values() for one in containers(pod) for mount in one.get("volumeMounts", [])]
    assert not [mount for mount in mounts if "subPath" in mount], "the kubelet never renews such a file"
    secrets = {
        volume["secret"]["secretName"] for pod in before.values() for volume in pod["volumes"] if "secret" in volume
    }
    assert {name for name in secrets if not name.startswith("chat-keys-")} == set(made_of)  # and the pool's own keys


def test_rotated_hub_token_reaches_new_pods_and_manual_restart_stays(fleet: Fleet, namespace: str) -> None:
    manifest = {
        "apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "chat"},
        "spec": {"replicas": 1, "model": {"uri": "hf://org/name", "tokenRef": {"name": "hub", "key": "token"}}},
    }  # fmt: skip
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(manifest))
    made(fleet, namespace)
    engine = templates(fleet, namespace)["chat-engine"]
    fetches = [one["name"] for one in containers(engine) if wants_token(one)]
    assert set(fetches) == {"tokenizer", "engine"}, "each reads the Secret when it starts"
    fleet.kubectl("-n", namespace, "rollout", "restart", "deployment/chat-engine")
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=2")
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 2)
    template = children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["template"]
    assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
    assert not [reason for reason, _ in events(fleet, namespace) if reason == "ChildRepaired"]


def templates(fleet: Fleet, namespace: str) -> dict[str, dict[str, Any]]:
    found = children(fleet, namespace).items()
    return {name: one["spec"]["template"]["spec"] for (kind, name), one in found if kind == "Deployment"}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def wants_token(container: dict[str, Any]) -> bool:
    wanted = {"name": "hub", "key": "token"}
    return any(one.get("valueFrom", {}).get("secretKeyRef") == wanted for one in container.get("env", []))
