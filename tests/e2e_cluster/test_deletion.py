"""A pool that is deleted, alone or with its namespace, drains: it completes its answers, and then nothing of it is
left. When a pool is deleted, garbage collection removes its Services, slices, accounts and directory at once, while its
pods still answer. When a namespace is deleted, Kubernetes deletes the pods first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.kube_access import Access, until
from support.kube_install import Pool, apply_pool, listing, made_by_users, remove_pool, until_gone
from support.kube_stream import Stream

CLIENTS = "clients"
TOKENS = 125  # 25 seconds at this speed, several times the duration of garbage collection
SPEC = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU", "timeScalePercent": 1000}}},
    "replicas": 1,
    "router": {"replicas": 1},
    "rollout": {"drainTimeoutSeconds": 60},  # Kubernetes checks a namespace again after half of the grace period
}
DELETE = {
    "pool": ("delete", "inferencepool/leaving-pool", "--namespace=leaving-pool", "--wait=false"),
    "namespace": ("delete", "namespace/leaving-namespace", "--wait=false"),
}


@dataclass(frozen=True)
class Leaving:
    """A pool in a namespace of its name, and a running answer of it."""

    pool: Pool
    stream: Stream


@pytest.fixture(scope="module")
def leaving(access: Access, installed: None) -> Iterator[dict[str, Leaving]]:
    """Both at the same time, since an answer takes long. It still runs when the pools' Services are deleted."""
    names = {what: f"leaving-{what}" for what in DELETE}
    for name in (CLIENTS, *names.values()):
        access.namespace(name)
    for name in names.values():
        access.kubectl("-n", name, "apply", "-f", "-", stdin=manifest(name))
    pools = {what: apply_pool(access, name, name, manifest(name)) for what, name in names.items()}
    made = {what: Leaving(pool, Stream.start(access, CLIENTS, pool, TOKENS)) for what, pool in pools.items()}
    for what, words in DELETE.items():
        assert made[what].stream.under_way(), made[what].stream.lines()
        access.kubectl(*words)
    until(lambda: all(all_end(access, pool) for pool in pools.values()), "all pods terminate")
    until(lambda: not services(access, pools["pool"]), "the pool's Services and slices are gone")
    over = [one.stream.lines() for one in made.values() if not one.stream.under_way()]
    assert not over, f"over before the deletion counted: {over}"
    yield made
    remove_pool(access, pools["pool"])
    access.kubectl("delete", "namespace", CLIENTS, *names.values(), "--ignore-not-found", "--timeout=120s")


@pytest.mark.parametrize("what", DELETE)
def test_deletion_completes_stream_then_removes_all_objects(
    access: Access, leaving: dict[str, Leaving], what: str
) -> None:
    pool, stream = leaving[what].pool, leaving[what].stream
    assert stream.end() == {"pieces": TOKENS, "usage": TOKENS, "done": True, "why": ""}
    kept = made_by_users([pool.namespace]) if what == "pool" else frozenset()
    until_gone(lambda: access.api.names("pods", pool.namespace))  # a listing of all kinds takes much longer
    until_gone(lambda: [one for one in listing(access) - kept if pool.namespace in one.split()])


def all_end(access: Access, pool: Pool) -> bool:
    pods = access.api.listed("pods", pool.namespace, f"inference.plumage.dev/pool={pool.name}")
    return all("deletionTimestamp" in pod["metadata"] for pod in pods)


def services(access: Access, pool: Pool) -> list[str]:
    return [name for kind in ("services", "endpointslices") for name in access.api.names(kind, pool.namespace)]


def manifest(name: str) -> str:
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return json.dumps({**kind, "spec": SPEC})
