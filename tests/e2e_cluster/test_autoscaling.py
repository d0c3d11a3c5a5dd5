"""The autoscaler in a real cluster: a pool sleeps, waiting requests wake it, each metric scales it up and down, and the
coldest replica is deleted first. It also tests who else may scale a pool.

Under one constant load, the manifest's target moves to either side of the measured figure, which takes seconds. Other
tests cover changing loads without pods: tests/unit/autoscaling, `plumage bench autoscale`,
tests/integration/operator/test_autoscaled_pool.py with a real ReplicaSet, and tests/integration/external_metrics for a
HorizontalPodAutoscaler. The hit ratio counts two minutes after the last change of the number of replicas. So the pools
for it start with the first test of the module, and the last test checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.kube_access import Access, until
from support.kube_hotness import engines, hotness
from support.kube_install import Pool, apply_pool, remove_pool
from support.kube_load import Load

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
# For each metric two targets, far above and far below its figure under STEADY: one for two replicas, and one for one.
TARGETS = {
    "TotalTokensPerSecond": ({"target": 20}, {"target": 100_000}),
    "OutputTokensPerSecond": ({"target": 1}, {"target": 100_000}),
    "TimeToFirstToken": ({"targetMilliseconds": 20}, {"targetMilliseconds": 600_000}),
    "QueueWait": ({"targetMilliseconds": 20}, {"targetMilliseconds": 600_000}),
    "KvCacheUsage": ({"targetPercent": 2}, {"targetPercent": 100}),
}
STEADY = {"groups": 4, "prefix_words": 100, "turns": 1, "workers": 8, "pace_s": 0.5, "answer_tokens": 20}
ENGINE = {  # four concurrent requests; waiting ones fill much of the cache. Each token costs CPU time, so a slow device
    "runtime": "Simulator",
    "simulator": {"cacheBlocks": 1000, "maxNumSeqs": 4, "device": {"preset": "GPU", "timeScalePercent": 300}},
}
# The cache of one replica has room for half of the prefixes, those of two for all.
SHARED = {"groups": 24, "prefix_words": 100, "turns": 1, "workers": 2, "pace_s": 0.7, "answer_tokens": 4}
UNIQUE = {**SHARED, "groups": 10**9}
SMALL = {"runtime": "Simulator", "simulator": {"cacheBlocks": 320}}
HITS = {**AUTOSCALING, "maxReplicas": 3, "metrics": [{"type": "CacheHitRatio", "targetPercent": 65}]}
# Concurrent clients for this many seconds. There are no retries, and each request is counted by its result.
CLIENTS = """
import json, sys, threading, time, urllib.request
host, number, seconds, tokens = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
body = {"model": "tiny-chat", "max_tokens": tokens, "ignore_eos": True}
results, began = [], threading.Barrier(number)

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
                results.append(json.load(answer)["usage"]["completion_tokens"] == tokens)
        except Exception as error:
            results.append(repr(error))
        if time.monotonic() > end:
            return

reachable()
clients = [threading.Thread(target=client, args=(name,)) for name in range(number)]
for one in clients: one.start()
for one in clients: one.join()
print(json.dumps({"answered": results.count(True), "lost": [one for one in results if one is not True]}))
"""


@pytest.fixture(scope="module", autouse=True)
def hits(access: Access, installed: None) -> Iterator[dict[str, Pool]]:
    """Two pools under load. `shared` has one replica and prefixes that repeat. `unique` has two replicas, of which none
    is needed, since its prefixes never repeat."""
    least, one_router = {"shared": 1, "unique": 2}, {"replicas": 1}
    made = {
        name: applied(access, name, SMALL, {**HITS, "minReplicas": n}, router=one_router) for name, n in least.items()
    }
    loads = [chat(access, made["shared"], **SHARED), chat(access, made["unique"], **UNIQUE)]
    change(access, made["unique"], {"autoscaling": {"minReplicas": 1}})
    yield made
    for load in loads:
        load.stop()
    for pool in made.values():
        remove_pool(access, pool)


@pytest.fixture(scope="module")
def sizes(access: Access, hits: dict[str, Pool]) -> Iterator[Pool]:
    """A Ready pool that sleeps from the start."""
    made = applied(access, "sizes", ENGINE, AUTOSCALING)
    yield made
    remove_pool(access, made)


@pytest.fixture(scope="module")
def steady(access: Access, sizes: Pool) -> Iterator[Load]:
    load = chat(access, sizes, **STEADY)
    yield load
    load.stop()


def test_pool_at_zero_wakes_for_waiting_requests(access: Access, sizes: Pool) -> None:
    assert wanted(access, sizes) == 0
    assert condition(access, sizes, "Ready")["reason"] == "ScaledToZero"
    result = json.loads(access.inside(sizes.namespace, CLIENTS, sizes.host, str(HELD), "0", "4"))
    assert result == {"answered": HELD, "lost": []}
    assert "Woken" in reasons(access, sizes)
    until(lambda: wanted(access, sizes) == 0, "the pool fell asleep again")
    until(lambda: condition(access, sizes, "Ready")["reason"] == "ScaledToZero", "its pods are gone")


def test_requests_in_flight_scale_pool(access: Access, sizes: Pool) -> None:
    metrics = [{"type": "RequestsInFlight", "target": 2}]
    change(access, sizes, {"autoscaling": {"minReplicas": 1, "metrics": metrics}})
    until(lambda: ready(access, sizes) == 1, "minReplicas are there")
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(access.inside, sizes.namespace, CLIENTS, sizes.host, "8", "40", "130")
        until(lambda: ready(access, sizes) == 2, f"it grew: {status(access, sizes)}")
        assert "RequestsInFlight" in status(access, sizes)["autoscaling"]["decision"]
        assert json.loads(load.result())["lost"] == []
    until(lambda: wanted(access, sizes) == 1, "it shrank")
    until(lambda: {"ScaledUp", "ScaledDown"} <= reasons(access, sizes), "both have an event")


def test_coldest_replica_is_deleted_instead_of_youngest(access: Access, sizes: Pool, request: Any) -> None:
    shrunk(access, sizes)
    change(access, sizes, {"autoscaling": {"minReplicas": 2}})
    until(lambda: ready(access, sizes) == 2, "minReplicas are there")
    old, young = engines(access, sizes)
    access.kubectl("-n", sizes.namespace, "annotate", "pod", old, "inference.plumage.dev/cordoned=true")
    request.getfixturevalue("steady")  # from now on only the younger replica gets requests
    found: dict[str, float] = {}

    def is_hotter() -> bool:
        """Much hotter: routers learn of the cordon after up to a minute, and until then both replicas get requests.
        Later the older one's hotness grows too, for it has prefixes that the pool still uses."""
        found.update(hotness(access, sizes))
        return found[young] > 3 * found[old] + 100

    until(is_hotter, "the replica that is asked is the hotter one")
    change(access, sizes, {"autoscaling": {"minReplicas": 1, **by("TotalTokensPerSecond", 1)}})
    until(lambda: wanted(access, sizes) == 1, "it shrank")
    until(lambda: len(engines(access, sizes)) == 1, "one is left")
    print(f"hotness {found[old]:.0f} of the older, which went, {found[young]:.0f} of the younger")
    assert engines(access, sizes) == [young]


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("metric", TARGETS)
def test_each_metric_scales_pool(access: Access, sizes: Pool, metric: str) -> None:
    shrunk(access, sizes)
    change(access, sizes, {"autoscaling": by(metric, 0)})
    until(lambda: ready(access, sizes) == 2, f"it grew: {status(access, sizes)}")
    change(access, sizes, {"autoscaling": by(metric, 1)})
    until(lambda: wanted(access, sizes) == 1, f"it shrank: {status(access, sizes)}")
    until(lambda: has_event(access, sizes, f"1 → 2 replicas: {metric} "), "an event has the reason of the growth")
    until(lambda: has_event(access, sizes, f"2 → 1 replicas: {metric} "), "an event has the reason of the scale-down")


@pytest.mark.usefixtures("steady")
def test_dry_run_reports_decision_and_changes_nothing(access: Access, sizes: Pool) -> None:
    shrunk(access, sizes)
    before = deployment(access, sizes)["metadata"]["generation"]
    change(access, sizes, {"autoscaling": {**by("TotalTokensPerSecond", 0), "dryRun": True}})
    until(lambda: condition(access, sizes, "Scaling")["reason"] == "DryRun", f"it would: {status(access, sizes)}")
    scaling = status(access, sizes)["autoscaling"]
    assert scaling["decision"].startswith("Dry run, nothing is changed: 1 → 2 replicas: TotalTokensPerSecond ")
    assert scaling["wantedReplicas"] == 2
    change(access, sizes, {"autoscaling": {**by("TotalTokensPerSecond", 1), "dryRun": False}})
    until(lambda: condition(access, sizes, "Scaling")["reason"] == "AtTarget", "it would no more")
    assert deployment(access, sizes)["metadata"]["generation"] == before  # it never had another size


def test_spec_decides_who_sets_replicas(access: Access, sizes: Pool) -> None:
    change(access, sizes, {"autoscaling": AUTOSCALING})
    said = access.refused("-n", sizes.namespace, "scale", "ppool/sizes", "--replicas=2")
    assert "spec.replicas" in said
    assert "must be absent, or 1, when autoscaling is set" in said
    change(access, sizes, {"autoscaling": None, "replicas": 1})
    until(lambda: wanted(access, sizes) == 1, "spec.replicas count")
    access.kubectl("-n", sizes.namespace, "scale", "ppool/sizes", "--replicas=2")
    until(lambda: ready(access, sizes) == 2, "kubectl scale counts")
    assert condition(access, sizes, "Scaling")["reason"] == "Manual"


def test_hit_ratio_adds_replica_if_curve_predicts_gain(access: Access, hits: dict[str, Pool]) -> None:
    until(lambda: ready(access, hits["shared"]) == 2, "it grew", within_s=600)
    (message,) = [one for one in said(access, hits["shared"]) if one.startswith("1 → 2 replicas: CacheHitRatio ")]
    assert "target 65 %: the curve predicts " in message
    print(message)


def test_hit_ratio_adds_no_replica_if_curve_predicts_no_gain(access: Access, hits: dict[str, Pool]) -> None:
    until(lambda: wanted(access, hits["unique"]) == 1, "it gave up what no hit is lost by", within_s=600)
    (message,) = [one for one in said(access, hits["unique"]) if "CacheHitRatio" in one]
    assert message.startswith("2 → 1 replicas: CacheHitRatio ")
    assert "target 65 %: the curve predicts no more than " in message
    assert ": none is added" in message
    print(message)


def applied(access: Access, name: str, engine: Mapping[str, Any], autoscaling: Mapping[str, Any], **more: Any) -> Pool:
    """A pool in a namespace of the same name. Its new replicas start with an empty cache."""
    spec = {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": engine,
        "autoscaling": autoscaling,
        "directory": {"warmup": {"enabled": False}},
        **more,
    }
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return apply_pool(access, name, name, json.dumps({**kind, "spec": spec}))


def chat(access: Access, pool: Pool, **settings: Any) -> Load:
    return Load.start(access, pool, port=8000, key="", model="tiny-chat", **settings)


def by(metric: str, side: int) -> dict[str, Any]:
    return {"metrics": [{"type": metric, **TARGETS[metric][side]}]}


def said(access: Access, pool: Pool) -> list[str]:
    """The messages of the pool's events."""
    events = access.api.listed("events", pool.namespace)
    return [one["message"] for one in events if one["involvedObject"]["kind"] == "InferencePool"]


def has_event(access: Access, pool: Pool, beginning: str) -> bool:
    return any(one.startswith(beginning) for one in said(access, pool))


def shrunk(access: Access, pool: Pool) -> None:
    """Waits for the end of a scale-down to one replica. Until then the Deployment's status has the number before."""
    numbers = (wanted, ready, lambda *whose: len(engines(*whose)))
    until(lambda: all(number(access, pool) == 1 for number in numbers), "one replica is there")


def change(access: Access, pool: Pool, spec: dict[str, Any]) -> None:
    access.api.patch("inferencepools", pool.name, pool.namespace, {"spec": spec})


def status(access: Access, pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = access.api.get("inferencepools", pool.name, pool.namespace)["status"]
    return found


def condition(access: Access, pool: Pool, type_: str) -> dict[str, Any]:
    found = status(access, pool)["conditions"]
    return next(one for one in found if one["type"] == type_)


def deployment(access: Access, pool: Pool) -> dict[str, Any]:
    return access.api.get("deployments", f"{pool.name}-engine", pool.namespace)


def wanted(access: Access, pool: Pool) -> int:
    return int(deployment(access, pool)["spec"]["replicas"])


def ready(access: Access, pool: Pool) -> int:
    return int(deployment(access, pool)["status"].get("readyReplicas", 0))


def reasons(access: Access, pool: Pool) -> set[str]:
    """The reasons of the pool's events."""
    events = access.api.listed("events", pool.namespace)
    return {one["reason"] for one in events if one["involvedObject"]["kind"] == "InferencePool"}
