"""Two pools with different models behind one gateway. A pod sends requests to the gateway's DNS name. One model's
requests are copied to the other pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.kube_access import Access, until
from support.kube_install import Pool, apply_pool, remove_pool

NAMESPACE = "gateway"
MODELS = {name: {"name": name, "pools": [{"poolRef": {"name": name}}]} for name in ("chat", "code")}
# One chat for each named model. Prints the results by model.
ASK = """
import json, sys, time, urllib.error, urllib.request
host, models, want, end = sys.argv[1], sys.argv[2].split(","), sys.argv[3], time.monotonic() + 240

def ask(model):
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    asked = urllib.request.Request(f"http://{host}:8000/v1/chat/completions", json.dumps(body).encode(),
                                   {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return "streamed" if b"data: [DONE]" in answer.read() else "cut"
    except urllib.error.HTTPError as error:
        return json.loads(error.read())["error"]["code"]
    except OSError as error:
        return repr(error)

while True:  # a new Service's rules and a changed ConfigMap reach the nodes a moment later
    seen = [ask(model) for model in models]
    if ",".join(seen) == want or time.monotonic() > end:
        print(json.dumps(dict(zip(models, seen))))
        break
    time.sleep(1.0)
"""

# Streamed chats until a copy of one is complete: the labels of its count. A router that is new may have no replica for
# the first copies.
COPIES = """
import json, re, sys, time, urllib.request
host, end = sys.argv[1], time.monotonic() + 240

def get(path, body=None):
    asked = urllib.request.Request(f"http://{host}:8000{path}", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read().decode()

chat = {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}], "stream": True}
while True:  # a changed ConfigMap reaches the routers a moment later
    get("/v1/chat/completions", json.dumps(chat).encode())
    lines = re.findall(r"^plumage_router_copied_requests_total{(.*)} ([0-9.]+)$", get("/metrics"), re.M)
    counted = [labels for labels, value in lines if float(value) > 0 and 'outcome="complete"' in labels]
    if counted or time.monotonic() > end:
        print(json.dumps(counted))
        break
    time.sleep(1.0)
"""


def manifest(kind: str, name: str, spec: dict[str, Any]) -> str:
    api = "inference.plumage.dev/v1alpha1"
    return json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})


def behind(name: str) -> str:
    spec = {"model": {"uri": "builtin://tiny-chat", "name": name}, "engine": {"runtime": "Simulator"},
            "replicas": 1, "router": {"gatewayRef": {"name": "front"}}}  # fmt: skip
    return manifest("InferencePool", name, spec)


@pytest.fixture
def pools(access: Access, installed: None) -> Iterator[dict[str, Pool]]:
    access.namespace(NAMESPACE)
    gateway = manifest("InferenceGateway", "front", {"replicas": 1, "models": list(MODELS.values())})
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=gateway)
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=behind("code"))
    made = {name: apply_pool(access, NAMESPACE, name, behind(name)) for name in ("chat", "code")}
    yield made
    access.kubectl("-n", NAMESPACE, "delete", "inferencegateway/front", "--ignore-not-found", "--timeout=60s")
    for pool in made.values():
        remove_pool(access, pool)


def test_gateway_serves_both_models_until_pool_is_deleted(access: Access, pools: dict[str, Pool]) -> None:
    host = f"front-gateway.{NAMESPACE}.svc.cluster.local"

    def ask(models: str, want: str) -> dict[str, str]:
        return json.loads(access.inside(NAMESPACE, ASK, host, models, want))  # type: ignore[no-any-return]

    access.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "inferencegateway/front", "--timeout=300s")
    assert ask("chat,code", "streamed,streamed") == {"chat": "streamed", "code": "streamed"}
    assert ask("nobody", "model_not_found") == {"nobody": "model_not_found"}

    shares = [{"poolRef": {"name": name}, "weight": 1} for name in pools]
    split = {"spec": {"models": [*(MODELS[name] for name in pools), {"name": "mix", "pools": shares}]}}
    access.kubectl("-n", NAMESPACE, "patch", "inferencegateway/front", "--type=merge", f"-p={json.dumps(split)}")
    assert ask("mix", "streamed") == {"mix": "streamed"}

    copied = [MODELS["chat"] | {"requestMirror": {"poolRef": {"name": "code"}}}, *split["spec"]["models"][1:]]
    patch = json.dumps({"spec": {"models": copied}})
    access.kubectl("-n", NAMESPACE, "patch", "inferencegateway/front", "--type=merge", f"-p={patch}")
    (counted,) = json.loads(access.inside(NAMESPACE, COPIES, host))
    assert 'pool="code"' in counted

    remove_pool(access, pools["code"])
    assert ask("chat,code,mix", "streamed,model_not_found,streamed") == {
        "chat": "streamed", "code": "model_not_found", "mix": "streamed",
    }  # fmt: skip
    # The gateway's routers are replaced meanwhile, since they mount the keys of each pool (0180).

    access.kubectl("-n", NAMESPACE, "delete", "inferencegateway/front", "--timeout=60s")
    reason = "GatewayMissing"
    until(
        lambda: reason in json.dumps(access.api.get("inferencepools", "chat", NAMESPACE)),
        "the pool reports the reason",
    )
