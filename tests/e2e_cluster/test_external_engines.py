"""Engines that somebody else deploys, without agents, behind Plumage's routers. An InferencePool of the Gateway API
names them. They are simulators, in place of plain vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.errors import NotHereError
from cluster.kinds import INFERENCE_POOLS, definition
from support.kube_access import Access, until
from support.kube_install import Pool, apply_pool, remove_pool, upgrade
from support.needs import missing

NAMESPACE = "external"
SWITCH = "integrations.inferenceExtension"
LABELS = {"app": "engines"}
# Each of some long prompts twice, one after the other. Prints the status of each answer, and the cached share.
ASK = """
import json, socket, sys, time, urllib.error, urllib.request
host, prompts = sys.argv[1], int(sys.argv[2])

def ask(number):
    text = " ".join(f"{number}-{word}" for word in range(400))
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
    asked = urllib.request.Request(f"http://{host}:8000/v1/chat/completions", json.dumps(body).encode(),
                                   {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            usage = json.loads(answer.read())["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            return answer.status, cached / usage["prompt_tokens"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

# A Service's new endpoint reaches the rules of this pod's node a moment after it is ready.
for _ in range(100):
    try:
        socket.create_connection((host, 8000), 5).close()
        break
    except OSError:
        time.sleep(0.2)
print(json.dumps([[ask(number), ask(number)] for number in range(prompts)]))
"""


def engines(image: str) -> list[dict[str, Any]]:
    """Two simulators on port 9000, without anything of Plumage beside them."""
    settings = {
        "model": "tiny",
        "modelFolder": "builtin://tiny-chat",
        "host": "0.0.0.0",
        "port": 9000,
        "adminTokenFile": "/etc/engine/token",
        "device": {"timeScale": 0.1},
    }
    data = {"engine.json": json.dumps(settings), "token": "nobody-uses-it\n"}
    container = {
        "name": "engine",
        "image": image,
        "command": ["python3", "-m", "plumage_engine.simulator", "--config=/etc/engine/engine.json"],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 9000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/engine"}, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "engines"}}, {"name": "tmp", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    deployment = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template}
    published = {
        "selector": {"matchLabels": LABELS},
        "targetPorts": [{"number": 9000}],
        "endpointPickerRef": {"name": "chat-picker", "port": {"number": 9002}},
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "engines"}, "data": data},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "engines"}, "spec": deployment},
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": "theirs"},
            "spec": published,
        },
    ]


MANIFEST = json.dumps(
    {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "builtin://tiny-chat", "name": "tiny"},
            "engine": {"external": {"inferencePoolRef": {"name": "theirs"}}},
            "router": {"replicas": 1, "endpointPicker": {}},
        },
    }
)


@pytest.fixture
def pool(access: Access, installed: None) -> Iterator[Pool]:
    try:
        path = str(definition(INFERENCE_POOLS))
    except NotHereError as error:
        missing("the definition of the Gateway API's InferencePool", str(error))
    access.kubectl("apply", "--server-side", "-f", path)
    access.kubectl("wait", "--for=condition=Established", "-f", path, "--timeout=60s")
    upgrade(access, "--set", f"{SWITCH}=true")
    access.namespace(NAMESPACE)
    for thing in engines(access.image):
        access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(thing))
    made = apply_pool(access, NAMESPACE, "chat", MANIFEST)
    yield made
    remove_pool(access, made)
    access.kubectl("-n", NAMESPACE, "delete", "deployment/engines", "configmap/engines", "--timeout=60s")
    upgrade(access, "--set", f"{SWITCH}=false")
    access.kubectl("delete", "-f", path, "--timeout=60s")


def ask(access: Access, pool: Pool, prompts: int) -> list[list[tuple[int, Any]]]:
    found = json.loads(access.inside(NAMESPACE, ASK, pool.host, str(prompts)))
    return [[(status, cached) for status, cached in pair] for pair in found]


def status(access: Access) -> dict[str, Any]:
    found: dict[str, Any] = access.api.get("inferencepools", "chat", NAMESPACE)["status"]
    return found


def condition(access: Access, type_: str) -> dict[str, Any]:
    return next(one for one in status(access)["conditions"] if one["type"] == type_)


def test_external_engines_get_requests_where_their_prefix_was_sent(access: Access, pool: Pool) -> None:
    names = access.api.names("pods", NAMESPACE, "inference.plumage.dev/pool=chat")
    assert not [name for name in names if name.startswith("chat-engine")], "Plumage makes no engine"
    until(lambda: status(access)["readyReplicas"] == 2, "both engines are ready")
    assert status(access)["replicas"] == 2

    answers = ask(access, pool, 8)
    assert [first[0] for first, _ in answers] == [200] * 8
    assert all(first[1] < 0.2 for first, _ in answers), "prompts share the template only"
    assert all(second[0] == 200 and second[1] > 0.8 for _, second in answers), "the second finds the first's blocks"

    access.kubectl("-n", NAMESPACE, "scale", "deployment/engines", "--replicas=1")
    until(lambda: status(access)["replicas"] == 1, "the routers see one engine")
    assert [one[0] for pair in ask(access, pool, 2) for one in pair] == [200] * 4

    access.kubectl("-n", NAMESPACE, "delete", "inferencepools.inference.networking.k8s.io/theirs", "--timeout=60s")
    until(lambda: condition(access, "EngineReady")["reason"] == "EnginesUnknown", "the pool reports the reason")
    assert [one[0] for pair in ask(access, pool, 1) for one in pair] == [200] * 2, "stale members are better than none"
