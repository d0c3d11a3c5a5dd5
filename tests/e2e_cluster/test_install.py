"""From an empty cluster to a streamed chat, with the README's commands."""

from __future__ import annotations

import json
import re

import yaml
from support.kube_access import Access
from support.kube_install import ROOT, Pool

_CRD = ROOT / "crds" / "inference.plumage.dev_inferencepools.yaml"
_READY_S = 60  # the limit for a pool of simulated engines, from `kubectl apply` on
_CHAT = """
import json, sys, time, urllib.error, urllib.request
body = {"model": sys.argv[2], "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello there"}]}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})

def ask(end=time.monotonic() + 60):
    while True:
        try:
            return urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # a new Service's rules reach the nodes a moment after its pods are ready
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

with ask() as answer:
    for line in answer:
        if line.startswith(b"data: "):
            print(line[6:].decode().strip())
"""


def test_pool_is_ready_within_a_minute(pool: Pool) -> None:
    print(f"Ready {pool.ready_s:.1f} s after kubectl apply")
    assert pool.ready_s <= _READY_S


def test_columns_show_the_pools_state(access: Access, pool: Pool) -> None:
    """All columns of `-o wide`. A pool without requests has no hit ratio."""
    header, row = access.kubectl("-n", pool.namespace, "get", "ppool", "-o", "wide").splitlines()
    columns = [*re.finditer(r"\S+(?: \S+)*", header)]
    ends = [*(column.start() for column in columns[1:]), len(row)]
    shown = {column.group(): row[column.start() : end].strip() for column, end in zip(columns, ends, strict=True)}
    assert re.fullmatch(r"\d*", shown.pop("HIT RATIO"))
    assert re.fullmatch(r"(\d+[smh])+", shown.pop("AGE"))
    assert shown == {
        "NAME": pool.name,
        "READY": "True",
        "REPLICAS": "2",
        "MODEL": "tiny-chat",
        "DESIRED": "2",
        "REASON": "Serving",
        "ENGINE": "Simulator",
        "URI": "builtin://tiny-chat",
        "ADDRESS": f"http://{pool.name}-router.{pool.namespace}.svc:8000",
    }


def test_fields_are_explained(access: Access, pool: Pool) -> None:
    """Each field of an engine with words of its description, and whole sentences for the most common questions."""
    explained = " ".join(access.kubectl("explain", "ppool.spec.engine").split())
    (version,) = yaml.safe_load(_CRD.read_text())["spec"]["versions"]
    engine = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]
    words = {name: " ".join(field.get("description", "").split()) for name, field in engine["properties"].items()}
    assert [name for name, said in words.items() if not said] == []
    assert [
        name for name, said in words.items() if not re.search(rf" {name} <[^>]*>.* {re.escape(said)}", explained)
    ] == []
    for sentence in (
        "The engine of each replica.",
        "vLLM, or the simulated engine.",
        "Container image. When absent, the operator's image for the runtime.",
        "Where downloaded weights are stored.",
    ):
        assert sentence in explained


def test_chat_streams_through_router_service(access: Access, pool: Pool) -> None:
    port = access.api.get("services", f"{pool.name}-router", pool.namespace)["spec"]["ports"][0]["port"]
    url = f"http://{pool.host}:{port}/v1/chat/completions"
    *events, end = access.inside(pool.namespace, _CHAT, url, "tiny-chat").splitlines()
    assert end == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") for event in events if "content" in event]
    assert len([piece for piece in pieces if piece]) > 1
