"""A pool with an external directory server that has a password, and with routers that require API keys. Password and
keys come from Secrets that pods mount, and the keys change while the pods run. The server is the image's own Valkey, in
a pod that Plumage did not make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.kube_access import Access, client_pod
from support.kube_install import Pool, apply_pool, remove_pool

NAMESPACE, SECRET, SERVER = "referred", "theirs", "cache"
PASSWORD, KEY, NEXT = "correct-horse", "sk-shop-1", "sk-shop-2"
_SERVE = """
import os
os.execvp("valkey-server", ["valkey-server", "--bind", "* -::*", "--save", "", "--requirepass", os.environ["PASSWORD"]])
"""
_CLIENT = """
import json, sys, time, urllib.error, urllib.request
router = sys.argv[1]
END = time.monotonic() + 240
PROMPT = "an agent reports the chunks of a prompt from the first whole one on " * 20

def chat(*keys):
    body = {"model": "tiny-chat", "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]}
    headers = {"content-type": "application/json", **{"authorization": f"Bearer {one}" for one in keys}}
    asked = urllib.request.Request(f"http://{router}:8000/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)["choices"][0]["finish_reason"]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)["error"]["code"]]

def soon(look, enough):
    while True:  # a new Service's rules reach the nodes a moment later, an agent's word its router, a Secret its pods
        try:
            seen = look()
        except urllib.error.URLError as error:
            seen = repr(error)
        if enough(seen) or time.monotonic() > END:
            return seen
        time.sleep(0.5)
"""
# Prints the answers of the pool to a client with the key, with another key and without one. Then it prints the router's
# status of the directory, once the router has read an agent's entries there. Then it prints the directory server's
# answer to a client without a password, and its keys.
_ASK = """
import redis

server, key, password = sys.argv[2:]

def figures():
    asked = urllib.request.Request(f"http://{router}:8000/metrics", headers={"x-plumage-admin-key": "sk-admin"})
    with urllib.request.urlopen(asked, timeout=60) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    names = {"plumage_router_degraded": "degraded", "plumage_router_directory_changes_total": "changes"}
    return {names[line[0]]: float(line[1]) for line in lines if line[0] in names}

def client(**options):
    return redis.Redis(host=server, protocol=2, socket_timeout=60, **options)

def refusal():
    try:
        return str(client().ping())
    except redis.AuthenticationError as error:
        return str(error)

print(json.dumps({
    "with": soon(lambda: chat(key), lambda seen: seen == "length"), "other": chat("sk-other"), "without": chat(),
    "router": soon(figures, lambda seen: "changes" in seen and seen["degraded"] == 0 < seen["changes"]),
    "refusal": refusal(),
    "kept": sorted(name.decode() for name in client(password=password).scan_iter()),
}))
"""
# The answers to both keys, once the newer one is accepted. There is one file, so the older key is refused from then on.
_ASK_AGAIN = """
new, old = sys.argv[2:]
print(json.dumps([soon(lambda: chat(new), lambda seen: seen == "length"), chat(old)]))
"""


def _server(image: str) -> list[dict[str, Any]]:
    pod = client_pod(SERVER, image, _SERVE, ())
    pod["metadata"]["labels"] = {"app": SERVER}
    reference = {"secretKeyRef": {"name": SECRET, "key": "password"}}
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "valueFrom": reference}]
    service = {"selector": {"app": SERVER}, "ports": [{"port": 6379}]}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
         "stringData": {"password": PASSWORD, "keys": f"shop {KEY}\n", "admin": "sk-admin\n"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVER}, "spec": service},
        pod,
    ]  # fmt: skip


_KEYS = {"apiKeysRef": "keys", "adminKeyRef": "admin"}


def _manifest(name: str) -> dict[str, Any]:
    directory = {"url": f"redis://{SERVER}:6379", "passwordRef": {"name": SECRET, "key": "password"}}
    spec = {
        "model": {"uri": "builtin://tiny-chat"},
        "replicas": 1,
        "engine": {"runtime": "Simulator"},
        "directory": {"redisRef": directory},
        "router": {"replicas": 1, "auth": {kind: {"name": SECRET, "key": key} for kind, key in _KEYS.items()}},
        "rollout": {"drainTimeoutSeconds": 5},
    }
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return {**kind, "spec": spec}


@pytest.fixture(scope="module")
def referring(access: Access, installed: None) -> Iterator[Pool]:
    access.namespace(NAMESPACE)
    theirs = "\n---\n".join(map(json.dumps, _server(access.image)))
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=theirs)
    made = apply_pool(access, NAMESPACE, "ours", json.dumps(_manifest("ours")))
    yield made
    remove_pool(access, made)
    access.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def answers(access: Access, referring: Pool) -> dict[str, Any]:
    server = f"{SERVER}.{NAMESPACE}.svc.cluster.local"
    answer: dict[str, Any] = json.loads(access.inside(NAMESPACE, _CLIENT + _ASK, referring.host, server, KEY, PASSWORD))
    return answer


def test_only_valid_key_is_answered(answers: dict[str, Any]) -> None:
    assert answers["with"] == "length"
    assert answers["other"] == answers["without"] == [401, "invalid_api_key"]


def test_agent_and_router_share_directory_with_password(
    access: Access, referring: Pool, answers: dict[str, Any]
) -> None:
    assert answers["refusal"].startswith("Authentication required"), "without it there is no access"
    assert answers["router"]["degraded"] == 0
    assert answers["router"]["changes"] > 0, "the router has read what the agent wrote"
    kept, engine = answers["kept"], f"{referring.name}-engine-"
    assert any(engine in name and name.endswith(":beat") for name in kept), kept
    conditions = access.api.get("inferencepools", referring.name, NAMESPACE)["status"]["conditions"]
    assert [one["reason"] for one in conditions if one["type"] == "DirectoryReady"] == ["External"]
    assert access.api.get("deployments", f"{referring.name}-directory", NAMESPACE) == {}, "it has none of its own"


def test_rotated_key_is_valid_without_restart(access: Access, referring: Pool, answers: dict[str, Any]) -> None:
    """The kubelet updates the pod's files within its sync period, and the router reads them again."""
    assert answers["with"] == "length", "the old key was accepted until now"
    chosen = f"inference.plumage.dev/pool={referring.name},app.kubernetes.io/component=router"
    shown = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{end}"
    routers = access.kubectl("-n", NAMESPACE, "get", "pods", "-l", chosen, "-o", shown)
    change = json.dumps({"stringData": {"keys": f"shop {NEXT}\n"}})
    access.kubectl("-n", NAMESPACE, "patch", "secret", SECRET, "--type=merge", "-p", change)
    answered = json.loads(access.inside(NAMESPACE, _CLIENT + _ASK_AGAIN, referring.host, NEXT, KEY))
    assert answered == ["length", [401, "invalid_api_key"]]
    assert access.kubectl("-n", NAMESPACE, "get", "pods", "-l", chosen, "-o", shown) == routers
    assert routers.endswith(" 0")
