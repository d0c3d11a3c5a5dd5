"""From an empty cluster to a streamed chat, with the README's commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kube_access import Access, until

_ROOT = Path(__file__).parents[2]
_NAMESPACE, _OPERATOR = "chat", "plumage-system"
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


@pytest.fixture(scope="module")
def installed(access: Access) -> Iterator[None]:
    repository, _, tag = access.image.rpartition(":")
    access.namespace(_OPERATOR)
    values = ["--set-string", f"image.repository={repository},image.tag={tag}"]
    chart = str(_ROOT / "charts" / "plumage")
    access.helm("install", "plumage", chart, "--namespace", _OPERATOR, *values, "--wait", "--timeout", "5m")
    yield
    access.helm("uninstall", "plumage", "--namespace", _OPERATOR, "--wait", "--timeout", "2m")


@pytest.fixture(scope="module")
def pool(access: Access, installed: None) -> Iterator[str]:
    """The example's pool, Ready."""
    access.namespace(_NAMESPACE)
    access.kubectl("-n", _NAMESPACE, "apply", "-f", str(_ROOT / "examples" / "pool.yaml"))
    access.kubectl("-n", _NAMESPACE, "wait", "--for=condition=Ready", "inferencepool/chat", "--timeout=300s")
    yield "chat"
    access.kubectl("-n", _NAMESPACE, "delete", "inferencepool/chat", "--timeout=60s")
    until(lambda: not _children(access), "garbage collection removed the pool's children")


def test_columns_tell_how_the_pool_is(access: Access, pool: str) -> None:
    header, row = access.kubectl("-n", _NAMESPACE, "get", "ppool").splitlines()
    assert header.split()[:3] == ["NAME", "READY", "REPLICAS"]
    assert row.split()[:3] == [pool, "True", "2"]


def test_fields_are_explained(access: Access, pool: str) -> None:
    told = access.kubectl("explain", "ppool.spec.engine")
    assert "FIELDS:" in told
    assert "runtime" in told


def test_a_chat_is_streamed_through_the_router_s_name(access: Access, pool: str) -> None:
    port = access.get("service", f"{pool}-router", _NAMESPACE)["spec"]["ports"][0]["port"]
    url = f"http://{pool}-router.{_NAMESPACE}.svc.cluster.local:{port}/v1/chat/completions"
    *events, end = access.inside(_NAMESPACE, _CHAT, url, "tiny-chat").splitlines()
    assert end == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") for event in events if "content" in event]
    assert len([piece for piece in pieces if piece]) > 1


def _children(access: Access) -> list[str]:
    kinds = "deployments,services,configmaps,networkpolicies,poddisruptionbudgets,rolebindings,pods"
    return access.kubectl("-n", _NAMESPACE, "get", kinds, "-l", "app.kubernetes.io/name=plumage", "-o", "name").split()
