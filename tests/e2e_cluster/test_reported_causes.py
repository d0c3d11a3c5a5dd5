"""A pool that is not ready has the cause in its conditions: in the cluster's own words, and with the remedy.

The words come from real kubelets, a real scheduler and programs that really end. A serving pool must continue to serve.
Pools that can't start are applied together, one for each cause.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.kube_access import Access, until
from support.kube_chat import chatting
from support.kube_install import Pool, apply_pool, remove_pool

NAMESPACE = "causes"
NOWHERE = "localhost/plumage-nowhere:1"
SECRET = "no-secret"
_LONGEST = 600  # characters of another component's message that a condition repeats


@dataclass(frozen=True)
class Cause:
    """A pool's spec that can not work, and the reason and words of its condition."""

    spec: dict[str, Any]
    reason: str
    words: tuple[str, ...]


def _with_env(name: str, **value: Any) -> dict[str, Any]:
    return {"runtime": "Simulator", "env": [{"name": name, **value}]}


CAUSES = {
    "reads-secret": Cause(
        {"engine": _with_env("TOKEN", valueFrom={"secretKeyRef": {"name": SECRET, "key": "token"}})},
        "MissingSecret",
        (f"Secret {SECRET}", "does not exist", "create it"),
    ),
    "mounts-secret": Cause(
        {"directory": {"redisRef": {"url": "redis://redis:6379", "passwordRef": {"name": "none", "key": "password"}}}},
        "MissingSecret",
        ("Secret none", "does not exist", "create it"),
    ),
    "claim": Cause(
        {"model": {"uri": "pvc://no-claim/model"}},
        "MissingVolumeClaim",
        ("PersistentVolumeClaim no-claim", "does not exist", "create it"),
    ),
    "crash": Cause(
        {"engine": _with_env("PYTHONHOME", value="/none")},
        "CrashLoop",
        (
            "container engine ended with exit code 1",
            "No module named 'encodings'",
            "kubectl logs crash-engine-",
            "-c engine --previous",
        ),
    ),
    "hub": Cause(
        {"model": {"uri": "hf://nobody/none"}, "engine": _with_env("HF_ENDPOINT", value="http://127.0.0.1:9")},
        "ModelFailed",
        (
            "container tokenizer ended with exit code 1",
            "can't fetch hf://nobody/none",
            "Connection refused",
            "spec.model",
        ),
    ),
    "folder": Cause(
        {"model": {"uri": "file:///models/none"}},
        "CrashLoop",
        ("container agent ended with exit code 2", "/models/none", "kubectl logs folder-engine-"),
    ),
}


@pytest.fixture
def serving(access: Access, installed: None) -> Iterator[Pool]:
    made = apply_pool(access, NAMESPACE, "serving", json.dumps(_manifest("serving", replicas=2)))
    yield made
    remove_pool(access, made)


@pytest.fixture(scope="module")
def broken(access: Access, installed: None) -> Iterator[dict[str, Pool]]:
    """Pools with all of CAUSES, none of which can become Ready."""
    access.namespace(NAMESPACE)
    manifests = [_manifest(name, **cause.spec) for name, cause in CAUSES.items()]
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, manifests)))
    pools = {name: Pool(name, NAMESPACE, 0.0) for name in CAUSES}
    yield pools
    access.kubectl("-n", NAMESPACE, "delete", "inferencepools", *pools, "--wait=false")
    for pool in pools.values():
        remove_pool(access, pool)
    access.kubectl("-n", NAMESPACE, "delete", "secret", SECRET, "--ignore-not-found")


def test_bad_image_halts_rollout_while_old_replicas_serve(access: Access, serving: Pool) -> None:
    with chatting(access, serving) as chats:
        old = _serving(access, serving)
        assert len(old) == 2
        _set_image(access, serving, NOWHERE)
        until(lambda: _halted_by_pull(access, serving), "the condition has the new pod's own pull error")
        halted = _condition(access, serving, "Progressing")
        for word in ("2 previous replicas still serve", f"can't pull image {NOWHERE} of container engine", "Correct"):
            assert word in halted["message"]
        assert _condition(access, serving, "Ready")["reason"] == "Serving"
        chats.go_on()
        until(lambda: _serving(access, serving) == old, "the old replicas, and no other, are ready")
        _set_image(access, serving, None)
        until(lambda: _condition(access, serving, "Progressing")["reason"] == "Settled", "the pool is whole again")
        chats.go_on()
        until(lambda: _serving(access, serving) == old, "the old replicas, and no other, are ready")


@pytest.mark.parametrize("name", CAUSES)
def test_condition_names_cause_and_remedy(access: Access, broken: dict[str, Pool], name: str) -> None:
    cause, found = CAUSES[name], {}

    def is_reported() -> bool:
        found.update(_condition(access, broken[name], "EngineReady"))
        return found.get("reason") == cause.reason and all(word in found["message"] for word in cause.words)

    try:
        until(is_reported, "its conditions name the cause")
    except AssertionError:
        assert (found.get("reason"), found.get("message")) == (cause.reason, cause.words)
    ready = _condition(access, broken[name], "Ready")
    assert (ready["status"], ready["reason"]) == ("False", cause.reason)
    print(f"{name}: {found['reason']}: {found['message']}")


def test_pool_becomes_ready_once_secret_exists(access: Access, broken: dict[str, Pool]) -> None:
    access.kubectl("-n", NAMESPACE, "create", "secret", "generic", SECRET, "--from-literal=token=here")
    pool = broken["reads-secret"]
    until(lambda: _condition(access, pool, "Ready").get("status") == "True", "the pool is Ready")


def _manifest(name: str, **spec: Any) -> dict[str, Any]:
    least = {
        "model": {"uri": "builtin://tiny-chat"},
        "replicas": 1,
        "engine": {"runtime": "Simulator"},
        "router": {"replicas": 1},
        "rollout": {"drainTimeoutSeconds": 5},
    }
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return {**kind, "spec": {**least, **spec}}


def _set_image(access: Access, pool: Pool, image: str | None) -> None:
    access.api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"engine": {"image": image}}})


def _condition(access: Access, pool: Pool, type_: str) -> dict[str, Any]:
    """A condition of the pool; empty while the status does not have it."""
    status = access.api.get("inferencepools", pool.name, pool.namespace).get("status", {})
    return next((one for one in status.get("conditions", ()) if one["type"] == type_), {})


def _engines(access: Access, pool: Pool) -> list[dict[str, Any]]:
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    return access.api.listed("pods", pool.namespace, chosen)


def _serving(access: Access, pool: Pool) -> dict[str, list[int]]:
    """The Ready engines by uid, and the restarts of their containers. A late answer to a probe on a busy machine
    replaces no engine. The chats check that requests are served all the time."""
    return {
        pod["metadata"]["uid"]: [one["restartCount"] for one in pod["status"].get("containerStatuses", ())]
        for pod in _engines(access, pool)
        if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    }


def _halted_by_pull(access: Access, pool: Pool) -> bool:
    """Whether condition and pod have the same error. A kubelet alternates between two errors, so callers repeat
    this."""
    halted, said = _condition(access, pool, "Progressing"), _pull_error(access, pool)
    return halted.get("reason") == "RolloutHalted" and bool(said) and said in halted["message"]


def _pull_error(access: Access, pool: Pool) -> str:
    """The error in the status of the pod that can't start."""
    statuses = [one for pod in _engines(access, pool) for one in pod["status"].get("containerStatuses", ())]
    waiting = [one["state"].get("waiting", {}) for one in statuses if one["name"] == "engine"]
    pulls = [str(one.get("message", "")) for one in waiting if "Pull" in one.get("reason", "")]
    return " ".join(pulls[0].split())[:_LONGEST] if pulls else ""
