"""API keys, admin routes, explanations, status and metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.scrapes import families

from plumage.routing.learned import Learned


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "keys").write_text("# tenants\nacme  key-a\nglobex key-b # theirs\nkey-c\n")
    (tmp_path / "admin").write_text("admin-key\n")
    return {"apiKeysFile": str(tmp_path / "keys"), "adminKeyFile": str(tmp_path / "admin")}


def replace(path: str, text: str) -> None:
    Path(path).write_text(text)


def refresh(running: Any) -> None:
    """The two looks at a file that a change takes."""
    running.router.pool.auth.refresh()
    running.router.pool.auth.refresh()


def get(path: str, key: str | None = None) -> bytes:
    secret = f"authorization: Bearer {key}\r\n" if key else ""
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n{secret}\r\n".encode()


@pytest.mark.parametrize("given", [None, "Bearer wrong", "key-a", "Basic key-a", "Bearer ", "Bearer key-a\x01"])
async def test_request_without_valid_key_is_refused(start: Any, kit: Any, keys: Any, given: str | None) -> None:
    running = await start(engines=1, auth=keys)
    answer = await running.post(kit.chat(), **({"authorization": given} if given else {}))
    assert answer.status in (400, 401)
    assert "key-a" not in answer.body.decode()
    assert running.engines[0].seen == []
    refused = await running.send(get("/v1/models"))
    assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    refused = await running.send(get("/plumage/v1/status"))
    assert (refused.status, refused.error["code"]) == (401, "admin_key")
    assert (await running.send(get("/v1/models", "key-c"))).status == 200
    assert (await running.send(get("/health"))).status == 200


async def test_tenants_have_different_salts(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys)
    for key in ("key-a", "key-b", "key-a"):
        assert (await running.post(kit.chat("x" * 600), authorization=f"Bearer {key}")).status == 200
    salts = [seen.json["cache_salt"] for seen in running.engines[0].seen]
    assert salts[0] == salts[2] != salts[1]
    records = list(running.router.pool.decisions.audit.latest(3))
    assert [record.tenant for record in records] == ["acme", "globex", "acme"]
    assert [record.matched_chunks > 0 for record in records] == [True, False, False], "tenants share no chain"
    refused = await running.post(kit.chat(cache_salt="mine"), authorization="Bearer key-a")
    assert (refused.status, refused.error["param"]) == (400, "cache_salt")


async def test_client_may_set_salt_without_keys(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    assert (await running.post(kit.chat(cache_salt="mine"))).status == 200
    assert running.engines[0].seen[0].json["cache_salt"] == "mine"


async def test_changed_keys_file_is_reloaded(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys)
    replace(keys["apiKeysFile"], "acme key-new\n")
    refresh(running)
    assert (await running.post(kit.chat(), authorization="Bearer key-a")).status == 401
    assert (await running.post(kit.chat(), authorization="Bearer key-new")).status == 200
    replace(keys["apiKeysFile"], "one two three\n")
    refresh(running)
    assert (await running.post(kit.chat(), authorization="Bearer key-new")).status == 200


async def test_admin_routes_need_admin_key(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys)
    for path in ("/plumage/v1/status", "/plumage/v1/explain/x", "/plumage/v1/hottest"):
        assert (await running.send(get(path))).status == 401
        assert (await running.send(get(path, "key-a"))).status == 401
    assert (await running.send(get("/plumage/v1/status", "admin-key"))).json["pool"] == "chat"
    refused = await running.post(kit.chat(), authorization="Bearer key-a", x_plumage_explain="1")
    assert (refused.status, refused.error["code"]) == (403, "admin_key")


async def test_admin_routes_are_closed_without_admin_key(start: Any, kit: Any) -> None:
    """To everybody, clients with keys and without; the answer says which setting opens them."""
    running = await start(engines=1, auth={"apiKeysFile": None, "adminKeyFile": None})
    for path in ("/plumage/v1/status", "/plumage/v1/explain/x", "/plumage/v1/hottest"):
        for given in (None, "key-a", "None"):
            answer = await running.send(get(path, given))
            assert answer.status == 401
            assert "auth.adminKeyFile" in answer.error["message"]
    refused = await running.post(kit.chat(), x_plumage_explain="1", x_plumage_admin_key="")
    assert (refused.status, refused.error["code"]) == (403, "admin_key")
    assert "auth.adminKeyFile" in refused.error["message"]
    assert running.engines[0].seen == []
    assert (await running.post(kit.chat())).status == 200
    assert (await running.send(get("/metrics"))).status == 200


async def test_metrics_need_admin_key_or_metrics_port(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, listen={"port": 0, "metricsPort": 0})
    for key in (None, "key-a"):
        refused = await running.send(get("/metrics", key))
        assert (refused.status, refused.error["code"]) == (401, "admin_key")
    assert b"plumage_router_requests_total" in (await running.send(get("/metrics", "admin-key"))).body
    [address] = running.router.metrics_port.addresses
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    for path, status in (("/metrics", 200), ("/healthz", 200), ("/v1/models", 404), ("/plumage/v1/status", 404)):
        writer.write(get(path))
        answer = await asyncio.wait_for(kit.read_answer(reader), 30)
        assert answer.status == status
        assert (b"plumage_router_requests_total" in answer.body) == (path == "/metrics")
    await running.router.stop(drain_seconds=0)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_explanation_comes_in_header_and_later(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=2, auth=keys, policy={"name": "PrefixAware"})
    said = {"authorization": "Bearer key-a", "x_plumage_admin_key": "admin-key", "x_plumage_explain": "1"}
    first = await running.post(kit.chat("a" * 2000), x_request_id="r-1", **said)
    second = await running.post(kit.chat("a" * 2000, stream=True), x_request_id="r-2", **said)
    import json

    header = json.loads(second.headers["x-plumage-explain"])
    assert first.status == second.status == 200
    assert header["replica"] == json.loads(first.headers["x-plumage-explain"])["replica"]
    assert header["chunks"]["matched"] == header["chunks"]["prompt"] > 5
    later = (await running.send(get("/plumage/v1/explain/r-2", "admin-key"))).json
    assert later["outcome"] == "Finished"
    assert later["hitTokens"]["actual"] == 64
    assert later["ttft"]["actual"] > 0
    assert later["tenant"] == "acme"
    assert "the most of 2" in later["why"]
    assert (await running.send(get("/plumage/v1/explain/r-9", "admin-key"))).error["code"] == "not_found"
    assert "x-plumage-explain" not in (await running.post(kit.chat(), authorization="Bearer key-a")).headers


async def test_status_shows_requests_and_replicas(start: Any, kit: Any, keys: Any) -> None:
    auth = {"adminKeyFile": keys["adminKeyFile"]}
    running = await start(engines=2, policy={"name": "PrefixAware"}, auth=auth)
    for _ in range(3):
        await running.post(kit.chat("b" * 2000))
    status = (await running.send(get("/plumage/v1/status?decisions=2", "admin-key"))).json
    assert (status["policy"], status["directory"], status["serving"]) == ("PrefixAware", "Degraded", True)
    assert sum(replica["routed"] for replica in status["replicas"]) == 3
    assert {replica["state"] for replica in status["replicas"]} == {"Ready"}
    assert len(status["decisions"]) == 2
    assert status["hottest"][0]["count"] == 2
    assert status["totals"]["requests"] == 3
    assert status["totals"]["hitRatio"] == 0.64
    assert (await running.send(get("/plumage/v1/status?decisions=x", "admin-key"))).status == 400


async def test_metrics_are_prometheus_text(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    await running.post(kit.chat())
    await running.post(b"{")
    answer = await running.send(get("/metrics"))
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert {name.partition("_")[0] for name in families(text)} == {"plumage", "process"}
    assert 'plumage_router_responses_total{status="200"} 1' in text
    assert 'plumage_router_errors_total{code="invalid_json"} 1' in text
    assert 'plumage_router_decision_seconds_bucket{le="+Inf"} 1' in text
    assert 'plumage_router_replica_ready{replica="chat-0"} 1' in text


async def test_metrics_escape_replica_names(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    odd = kit.Engine('chat-"1"\n{\\')
    await odd.start()
    running.engines.append(odd)
    running.write_members()
    await kit.until(lambda: running.router.pool.fleet.get(odd.name))
    found = families((await running.send(get("/metrics"))).body.decode())
    per_replica = [family for name, family in found.items() if name.startswith("plumage_router_replica_")]
    assert len(per_replica) == 8
    for family in per_replica:
        assert [sample.labels for sample in family.samples] == [{"replica": "chat-0"}, {"replica": odd.name}]


async def test_predictions_are_compared_with_results(start: Any, kit: Any) -> None:
    """Of time to first token and of the whole answer, apart."""
    running = await start(engines=1, policy={"name": "Lbgr"})
    learned = Learned(1.0, 1.0, (0.0, 0.0, 0.0, 0.01), (0.0, 0.0, 0.0, 0.02), 100)
    assert running.router.pool.decider.policy.adopt(0, learned, 0.0)
    for turn in range(3):
        assert (await running.post(kit.chat(f"{turn} " * 500, stream=True))).status == 200
    metrics, records = running.router.pool.metrics, list(running.router.pool.decisions.audit.latest(3))
    text = (await running.send(get("/metrics"))).body.decode()
    for name, field in (("ttft_error", "ttft"), ("latency_error", "latency")):
        predicted = sum(getattr(record, f"predicted_{field}") for record in records)
        actual = sum(getattr(record, field) for record in records)
        errors = getattr(metrics, name)
        assert errors.count == 3
        assert f"plumage_router_{name}_seconds_count 3" in text
        assert 0 < errors.sum + predicted <= actual + 1e-6, "from sending on: the router's own time is no error"


@pytest.mark.parametrize("stream", [True, False])
async def test_new_router_predicts_no_latency(start: Any, kit: Any, stream: bool) -> None:
    running = await start(engines=1, policy={"name": "Lbgr"})
    assert (await running.post(kit.chat("Hello", stream=stream))).status == 200
    (record,) = running.router.pool.decisions.audit.latest(1)
    assert record.document()["latency"]["predicted"] is None
    assert record.document()["latency"]["actual"] > 0
    assert running.router.pool.metrics.latency_error.count == 0


async def test_models_route_lists_aliases_and_adapters(start: Any, kit: Any) -> None:
    running = await start(engines=1, model={"aliases": ["gpt-4"], "adapters": ["sql"]})
    listed = (await running.send(get("/v1/models"))).json
    assert [model["id"] for model in listed["data"]] == ["tiny", "gpt-4", "sql"]
    assert (await running.send(get("/v1/models/sql"))).json["id"] == "sql"
    assert (await running.send(get("/v1/models/other"))).status == 404
    for model in ("tiny", "gpt-4", "sql"):
        assert (await running.post(kit.chat("c" * 600, model=model))).status == 200
    assert [seen.json["model"] for seen in running.engines[0].seen] == ["tiny", "tiny", "sql"]
    matched = [record.matched_chunks > 0 for record in running.router.pool.decisions.audit.latest(3)]
    assert matched == [False, True, False], "an alias shares the base model's chain, an adapter does not"


async def test_control_surface_keeps_alive(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    reader, writer = await running.connect()
    writer.write(get("/health") + get("/v1/models") + kit.request(kit.chat()))
    assert [(await kit.read_answer(reader)).status for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/tiny", "/health?x=1"])
async def test_head_equals_get_without_body(start: Any, kit: Any, path: str) -> None:
    """Load balancers look with HEAD."""
    running = await start(engines=1)
    reader, writer = await running.connect()
    writer.write(kit.request(b"", path=path, method="HEAD") + get("/health"))
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
    assert head.startswith("HTTP/1.1 200 ")
    length = int(head.lower().partition("content-length: ")[2].split()[0])
    assert length > 0
    after = await kit.read_answer(reader)
    assert (after.status, after.body) == (200, b"ok"), "nothing stands between the two answers"


async def test_head_shows_missing_replica(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    running.write_members({"chat-0": "Draining"})
    await kit.until(lambda: not running.router.pool.fleet.candidates(running.router.pool.tick))
    reader, writer = await running.connect()
    writer.write(kit.request(b"", path="/health", method="HEAD", connection="close"))
    head = await asyncio.wait_for(reader.read(), 30)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert head.endswith(b"\r\n\r\n")
