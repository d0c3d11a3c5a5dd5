"""Nodes that advertise GPUs, and a real scheduler: the placement of a pool's pods, and the condition when there is no
room. The nodes are objects only; no program runs on them, so placed pods stay Pending."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cluster.errors import NotHereError
from cluster.pretend import add_nodes, node, pretended
from support.needs import missing
from support.operator_fleet import Fleet, condition

from plumage.api.v1alpha1.gpus import GPU

pytestmark = pytest.mark.timeout(400)  # seconds on a busy machine: this file has its own cluster

KINDS = itertools.count(100)
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
POOL = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: builtin://tiny-llama}
  replicas: 4
  engine:
    runtime: VLLM
    tensorParallelSize: 2
    nodeSelector: {accelerator: KIND}
    priorityClassName: serving
    topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app.kubernetes.io/component: engine, inference.plumage.dev/pool: chat}}
"""
TOLERATIONS = "    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]\n"
PRIORITY = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: serving}
value: 1000
"""


def gpu_node(name: str, zone: str, kind: str) -> dict[str, Any]:
    """A node with four GPUs of a kind, and with a taint, as is usual for GPUs."""
    labels = {"accelerator": kind, "topology.kubernetes.io/zone": zone}
    return node(f"{kind}-{name}", extra={GPU: "4"}, labels=labels, taints=[TAINT])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster of its own, since its scheduler would also place the pods of other tests."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(pretended(kubelets=False))
        except NotHereError as error:
            missing("a scheduler", str(error))
        add_nodes(server, [node("plain"), gpu_node("a", "a", "others")])
        fleet = Fleet(server, tmp_path_factory.mktemp("gpus"))
        fleet.install()
        fleet.kubectl("apply", "-f", "-", stdin=PRIORITY)
        fleet.start()
        stack.callback(lambda: fleet.stop(kill=True))
        yield fleet


@pytest.fixture
def kind(fleet: Fleet, request: pytest.FixtureRequest) -> str:
    """Two nodes with a kind of GPU that no other test uses: without a kubelet, a deleted pod stays for long."""
    kind = f"h{next(KINDS)}"
    add_nodes(fleet.server, [gpu_node("a", "a", kind), gpu_node("b", "b", kind)])
    return kind


def apply(fleet: Fleet, namespace: str, kind: str, *, replicas: int = 4, tolerations: str = TOLERATIONS) -> None:
    text = POOL.replace("KIND", kind).replace("replicas: 4", f"replicas: {replicas}") + tolerations
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=text)


def engines(fleet: Fleet, namespace: str) -> list[dict[str, Any]]:
    listed = fleet.get(namespace, "pods", "-l", "app.kubernetes.io/component=engine").get("items", [])
    return list(listed)


def places(fleet: Fleet, namespace: str) -> Counter[str]:
    """Engine pods by node; pods without a node have an empty name."""
    return Counter(pod["spec"].get("nodeName", "") for pod in engines(fleet, namespace))


def unplaced(fleet: Fleet, namespace: str) -> str:
    """The scheduler's message about the pod without a node."""
    for pod in engines(fleet, namespace):
        for one in pod.get("status", {}).get("conditions", []):
            if (one["type"], one["status"]) == ("PodScheduled", "False"):
                return str(one["message"])
    return ""


def engine_ready(fleet: Fleet, namespace: str, pool: str) -> str:
    """The reason of that condition."""
    found = fleet.get(namespace, "ppool", pool).get("status", {}).get("conditions", [])
    return next((str(one["reason"]) for one in found if one["type"] == "EngineReady"), "")


def test_replicas_of_two_gpus_are_placed_as_the_manifest_says(fleet, namespace, kind) -> None:
    apply(fleet, namespace, kind)
    fleet.until(lambda: places(fleet, namespace) == {f"{kind}-a": 2, f"{kind}-b": 2})
    for pod in engines(fleet, namespace):
        (engine,) = pod["spec"]["containers"]
        assert engine["resources"]["requests"][GPU] == engine["resources"]["limits"][GPU] == "2"
        assert "--tensor-parallel-size=2" in engine["args"]
        assert pod["spec"]["priority"] == 1000
        assert pod["spec"]["nodeSelector"] == {"accelerator": kind}
        assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert (spread["maxSkew"], spread["topologyKey"]) == (1, "topology.kubernetes.io/zone")
    routers = fleet.get(namespace, "pods", "-l", "app.kubernetes.io/component=router")["items"]
    assert [GPU in str(pod["spec"]["containers"]) for pod in routers] == [False, False]
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "Starting")


def test_condition_has_the_schedulers_message_until_a_shortage_is_over(fleet, namespace, kind) -> None:
    apply(fleet, namespace, kind, replicas=5)
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "NoGpu")
    fleet.until(lambda: places(fleet, namespace) == {f"{kind}-a": 2, f"{kind}-b": 2, "": 1})
    said = unplaced(fleet, namespace)
    assert "Insufficient nvidia.com/gpu" in said
    fleet.until(lambda: unplaced(fleet, namespace) in condition(fleet, namespace, "EngineReady")["message"])
    ready = condition(fleet, namespace, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoGpu")
    assert "Add nodes that have nvidia.com/gpu free" in ready["message"]
    add_nodes(fleet.server, [gpu_node("c", "b", kind)])
    fleet.until(lambda: places(fleet, namespace) == {f"{kind}-a": 2, f"{kind}-b": 2, f"{kind}-c": 1})
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "Starting")


def test_minimal_pool_requests_gpu_unless_limit_is_zero(fleet, namespace, kind) -> None:
    least = {"model": {"uri": "hf://org/name"}}
    cpu = {**least, "engine": {"resources": {"limits": {GPU: 0}}}}
    for name, spec in (("least", least), ("cpu", cpu)):
        kinds = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
        fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps({**kinds, "spec": spec}))
    fleet.until(lambda: len(engines(fleet, namespace)) == 2)
    fleet.until(lambda: sorted(places(fleet, namespace)) == ["", "plain"])
    fleet.until(lambda: engine_ready(fleet, namespace, "least") == "NoGpu")
    fleet.until(lambda: engine_ready(fleet, namespace, "cpu") == "Starting")


def test_condition_names_a_taint_that_pods_do_not_tolerate(fleet, namespace, kind) -> None:
    apply(fleet, namespace, kind, tolerations="")
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("reason") == "Unschedulable")
    reported = condition(fleet, namespace, "EngineReady")["message"]
    assert "untolerated taint" in reported
    assert "tolerations" in reported
    assert places(fleet, namespace) == {"": 4}
