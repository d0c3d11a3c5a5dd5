"""From an empty cluster to a streamed chat, with the README's commands."""

from __future__ import annotations

import json

from support.kube_access import Access
from support.kube_install import Pool

_READY_S = 60  # what is asked of a pool of simulated engines, from `kubectl apply` on
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


def test_a_pool_is_ready_within_a_minute(pool: Pool) -> None:
    print(f"Ready {pool.ready_s:.1f} s after kubectl apply")
    assert pool.ready_s <= _READY_S


def test_columns_tell_how_the_pool_is(access: Access, pool: Pool) -> None:
    header, row = access.kubectl("-n", pool.namespace, "get", "ppool").splitlines()
    assert header.split()[:3] == ["NAME", "READY", "REPLICAS"]
    assert row.split()[:3] == [pool.name, "True", "2"]


def test_fields_are_explained(access: Access, pool: Pool) -> None:
    told = access.kubectl("explain", "ppool.spec.engine")
    assert "FIELDS:" in told
    assert "runtime" in told


def test_a_chat_is_streamed_through_the_router_s_name(access: Access, pool: Pool) -> None:
    port = access.get("service", f"{pool.name}-router", pool.namespace)["spec"]["ports"][0]["port"]
    url = f"http://{pool.host}:{port}/v1/chat/completions"
    *events, end = access.inside(pool.namespace, _CHAT, url, "tiny-chat").splitlines()
    assert end == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") for event in events if "content" in event]
    assert len([piece for piece in pieces if piece]) > 1
