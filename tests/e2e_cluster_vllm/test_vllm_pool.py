"""One replica of real vLLM in a pool: what a client, the operator and a person see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.kube_access import Access, until
from support.kube_install import Pool

_TURN = "Sing me about feathers, and how birds keep them in order through rain, moult and a long winter. "
# Streams the chats one after another. Prints the number of text chunks and the usage of each, as the engine sent them.
_CHATS = """
import json, sys, time, urllib.error, urllib.request
url, end = sys.argv[1], time.monotonic() + 60

def ask(body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    while True:
        try:
            return urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            raise SystemExit(error.read().decode()) from error
        except urllib.error.URLError:  # a new Service's rules reach the nodes a moment after its pods are ready
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

for body in map(json.loads, sys.argv[2:]):
    seen = {"pieces": 0, "done": False, "usage": {}}
    with ask(body) as answer:
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                seen["done"] = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                seen["usage"] = event.get("usage") or seen["usage"]
                seen["pieces"] += any(choice["delta"].get("content") for choice in event["choices"])
                if seen["pieces"] == 1:
                    print("first", flush=True)
    print(json.dumps(seen), flush=True)
"""
_PAGE = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
_FEATURES = ("feather", "batchLimit", "eviction", "hostTier", "promotion", "record")
_LONG = 1500  # tokens: the answer takes longer than the start of a pod's deletion


def _body(text: str, tokens: int) -> str:
    body = {"model": "tiny-llama", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    return json.dumps({**body, "messages": [{"role": "user", "content": text}]})


def _chats(access: Access, pool: Pool, *bodies: str) -> list[dict[str, Any]]:
    port = access.api.get("services", f"{pool.name}-router", pool.namespace)["spec"]["ports"][0]["port"]
    printed = access.inside(pool.namespace, _CHATS, f"http://{pool.host}:{port}/v1/chat/completions", *bodies)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _engine(access: Access, pool: Pool) -> dict[str, Any]:
    (pod,) = json.loads(
        access.kubectl("-n", pool.namespace, "get", "pods", "-l", "app.kubernetes.io/component=engine", "-o", "json")
    )["items"]
    found: dict[str, Any] = pod
    return found


def _metrics(access: Access, pool: Pool) -> dict[str, float]:
    """The plugin's metrics, from vLLM's metrics page."""
    url = f"http://{pool.name}-engine.{pool.namespace}.svc.cluster.local:8000/metrics"
    page = access.inside(pool.namespace, _PAGE, url)
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("plumage_engine_"))
    return {name.removeprefix("plumage_engine_"): float(value) for name, value in rows}


def test_every_feature_of_the_manifest_is_on(access: Access, pool: Pool) -> None:
    print(f"Ready {pool.ready_s:.0f} s after kubectl apply")
    metrics = _metrics(access, pool)
    on = {feature: metrics.get(f'feature_on{{feature="{feature}"}}') for feature in _FEATURES}
    assert on == dict.fromkeys(_FEATURES, 1.0), metrics


def test_second_turn_hits_the_first_turns_blocks(access: Access, pool: Pool) -> None:
    first, second = _chats(access, pool, _body(_TURN * 3, 16), _body(_TURN * 6, 16))
    for answer in (first, second):
        assert answer["done"]
        assert answer["pieces"] > 1
        assert answer["usage"]["completion_tokens"] == 16
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    print(f"of {second['usage']['prompt_tokens']} prompt tokens cached: {second['usage']['prompt_tokens_details']}")
    metrics = _metrics(access, pool)
    assert metrics["admissions_total"] >= 2
    assert metrics["host_admissions_total"] > 0
    assert metrics['failures_total{feature=""}'] == 0


def test_status_shows_the_hit_ratio(access: Access, pool: Pool) -> None:
    """The operator reads a pool's counters once a minute and reports the ratio between two reads."""

    def seen() -> bool:
        _chats(access, pool, _body(_TURN * 4, 4))
        return int(access.api.get("inferencepools", pool.name, pool.namespace)["status"].get("hitRatioPercent", 0)) > 0

    until(seen, "the pool's status has a hit ratio")
    header, row = access.kubectl("-n", pool.namespace, "get", "ppool").splitlines()
    print(header, row, sep="\n")
    table = _plumage(access, "status", pool.name, "-n", pool.namespace)
    print(table)
    assert re.search(rf"{pool.name} +True +1/1 +[1-9]\d? ?%", table), table


def test_running_engine_takes_another_batching_policy(access: Access, pool: Pool) -> None:
    """Through the ConfigMap, which the kubelet updates within about a minute, and the agent."""
    before = _engine(access, pool)["metadata"]["name"]
    patch = {"spec": {"engine": {"feather": {"policy": "Heuristic"}}}}
    access.kubectl("-n", pool.namespace, "patch", "inferencepool", pool.name, "--type=merge", "-p", json.dumps(patch))

    def has_policy() -> bool:
        log = access.kubectl("-n", pool.namespace, "logs", before, "-c", "engine")
        return "plumage: feather: the policy is Heuristic from now on" in log

    until(has_policy, "the engine has the new policy")
    after = _engine(access, pool)
    assert after["metadata"]["name"] == before
    assert not any(one["restartCount"] for one in after["status"]["containerStatuses"])
    (answer,) = _chats(access, pool, _body(_TURN, 8))
    assert answer["done"]


def test_deleted_pod_ends_its_stream_first(access: Access, pool: Pool) -> None:
    """The pool scales to zero during an answer: the pod's preStop hook waits until the last token."""
    engine = _engine(access, pool)["metadata"]["name"]
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(_chats, access, pool, _body("A long story, please.", _LONG))
        until(lambda: asking.done() or _streams(access, pool), "a stream has begun")
        access.kubectl("-n", pool.namespace, "scale", "inferencepool", pool.name, "--replicas=0")
        until(lambda: asking.done() or _ends(access, pool, engine), f"{engine} is being deleted")
        assert not asking.done(), "the answer ended before the deletion began: the test proves nothing"
        (answer,) = asking.result()
    assert answer["done"]
    assert answer["usage"]["completion_tokens"] == _LONG
    until(lambda: not access.api.get("pods", engine, pool.namespace), f"{engine} is gone")


def _streams(access: Access, pool: Pool) -> bool:
    return "first" in access.kubectl("-n", pool.namespace, "logs", "-l", "app=client", check=False)


def _ends(access: Access, pool: Pool, name: str) -> bool:
    return "deletionTimestamp" in access.api.get("pods", name, pool.namespace).get(
        "metadata", {"deletionTimestamp": ""}
    )


def _plumage(access: Access, *words: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(access.kubeconfig), "NO_COLOR": "1", "COLUMNS": "160"}
    command = [sys.executable, "-m", "plumage_cli", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
