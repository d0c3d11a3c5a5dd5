"""A pool that sizes itself in a real cluster: asleep, woken by requests that wait, up and down by a metric; and who
else may size a pool.

Each metric's own direction is shown without pods, where it takes seconds: in tests/unit/autoscaling, by
`plumage bench autoscale`, with a real ReplicaSet in tests/integration/operator/test_autoscaled_pool.py, and for a
HorizontalPodAutoscaler by external.metrics.k8s.io in tests/integration/external_metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.kube_access import Access, until
from support.kube_install import Pool, apply_pool, remove_pool

HELD = 20
AUTOSCALING = {
    "minReplicas": 0,
    "maxReplicas": 2,
    "idleSeconds": 15,
    "metrics": [{"type": "RequestsInFlight", "target": HELD}],
    "behavior": {
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}],
        },
    },
}
MANIFEST = {
    "apiVersion": "inference.plumage.dev/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "sizes"},
    "spec": {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator"},
        "autoscaling": AUTOSCALING,
    },
}
# At once and for so many seconds; each request is asked once, and counted by what became of it.
CLIENTS = """
import json, sys, threading, time, urllib.request
host, number, seconds, tokens = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
body = {"model": "tiny-chat", "max_tokens": tokens, "ignore_eos": True}
told, began = [], threading.Barrier(number)

def reachable(end=time.monotonic() + 240):
    while True:  # a new Service's rules reach the nodes a moment after its pods are ready
        try:
            return urllib.request.urlopen(f"http://{host}:8000/healthz", timeout=20).read()
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"the router does not answer: {error!r}")
            time.sleep(0.5)

def client(name, end=time.monotonic() + seconds):
    began.wait()
    while True:
        messages = [{"role": "user", "content": f"I am {name}, at {time.monotonic()}"}]
        data = json.dumps({**body, "messages": messages}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{host}:8000/v1/chat/completions", data, kind)
        try:
            with urllib.request.urlopen(request, timeout=280) as answer:
                told.append(json.load(answer)["usage"]["completion_tokens"] == tokens)
        except Exception as error:
            told.append(repr(error))
        if time.monotonic() > end:
            return

reachable()
clients = [threading.Thread(target=client, args=(name,)) for name in range(number)]
for one in clients: one.start()
for one in clients: one.join()
print(json.dumps({"answered": told.count(True), "lost": [one for one in told if one is not True]}))
"""


@pytest.fixture(scope="module")
def sizes(access: Access, installed: None) -> Iterator[Pool]:
    """Ready, and asleep from the beginning."""
    made = apply_pool(access, "sizes", "sizes", json.dumps(MANIFEST))
    yield made
    remove_pool(access, made)


def test_a_sleeping_pool_wakes_for_requests_that_wait_and_loses_none(access: Access, sizes: Pool) -> None:
    assert wanted(access, sizes) == 0
    assert condition(access, sizes, "Ready")["reason"] == "ScaledToZero"
    told = json.loads(access.inside(sizes.namespace, CLIENTS, sizes.host, str(HELD), "0", "4"))
    assert told == {"answered": HELD, "lost": []}
    assert "Woken" in reasons(access, sizes)
    until(lambda: wanted(access, sizes) == 0, "the pool fell asleep again")
    until(lambda: condition(access, sizes, "Ready")["reason"] == "ScaledToZero", "its pods are gone")


def test_a_pool_grows_and_shrinks_by_what_is_in_flight(access: Access, sizes: Pool) -> None:
    metrics = [{"type": "RequestsInFlight", "target": 2}]
    change(access, sizes, {"autoscaling": {"minReplicas": 1, "metrics": metrics}})
    until(lambda: ready(access, sizes) == 1, "minReplicas are there")
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(access.inside, sizes.namespace, CLIENTS, sizes.host, "8", "40", "400")
        until(lambda: ready(access, sizes) == 2, f"it grew: {status(access, sizes)}")
        assert "RequestsInFlight" in status(access, sizes)["autoscaling"]["decision"]
        assert json.loads(load.result())["lost"] == []
    until(lambda: wanted(access, sizes) == 1, "it shrank")
    assert {"ScaledUp", "ScaledDown"} <= reasons(access, sizes)


def test_who_sizes_a_pool_is_said_by_its_spec(access: Access, sizes: Pool) -> None:
    change(access, sizes, {"autoscaling": AUTOSCALING})
    said = access.refused("-n", sizes.namespace, "scale", "ppool/sizes", "--replicas=2")
    assert "spec.replicas" in said
    assert "must be absent when autoscaling is set" in said
    change(access, sizes, {"autoscaling": None, "replicas": 1})
    until(lambda: wanted(access, sizes) == 1, "spec.replicas count")
    access.kubectl("-n", sizes.namespace, "scale", "ppool/sizes", "--replicas=2")
    until(lambda: ready(access, sizes) == 2, "kubectl scale counts")
    assert condition(access, sizes, "Scaling")["reason"] == "Manual"


def change(access: Access, pool: Pool, spec: dict[str, Any]) -> None:
    patch = json.dumps({"spec": spec})
    access.kubectl("-n", pool.namespace, "patch", f"ppool/{pool.name}", "--type=merge", "-p", patch)


def status(access: Access, pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = access.get("inferencepools", pool.name, pool.namespace)["status"]
    return found


def condition(access: Access, pool: Pool, type_: str) -> dict[str, Any]:
    found = status(access, pool)["conditions"]
    return next(one for one in found if one["type"] == type_)


def deployment(access: Access, pool: Pool) -> dict[str, Any]:
    return access.get("deployment", f"{pool.name}-engine", pool.namespace)


def wanted(access: Access, pool: Pool) -> int:
    return int(deployment(access, pool)["spec"]["replicas"])


def ready(access: Access, pool: Pool) -> int:
    return int(deployment(access, pool)["status"].get("readyReplicas", 0))


def reasons(access: Access, pool: Pool) -> set[str]:
    """Of the events that were told of it."""
    told = access.kubectl("-n", pool.namespace, "get", "events", "-o", "json")
    own = [one for one in json.loads(told)["items"] if one["involvedObject"]["kind"] == "InferencePool"]
    return {one["reason"] for one in own}
