"""Requests through a real Envoy that asks the endpoint picker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.otlp import received_spans
from support.port_certificates import PortCertificate

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Load, State
from plumage.directory.server.local_server import LocalServer


def routed(proxy: Any) -> float:
    """What the router counts as in flight or in work, over all replicas."""
    loads = [replica.load for replica in proxy.pool.fleet]
    return sum(load.routed + load.prefill_tokens + load.decode_blocks + load.starting for load in loads)


def seen_by_engines(proxy: Any) -> list[Any]:
    return [seen for engine in proxy.running.engines for seen in engine.seen]


async def test_stream_passes_and_teaches_the_policy(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=2, policy={"name": "Lbgr"})
    body = json.dumps(kit.chat(stream=True, stream_options={"include_usage": True})).encode()
    answer = await proxy.send(kit.request(body), kit.read_answer)
    assert answer.status == 200
    assert answer.headers["x-request-id"]
    assert answer.body.count(b"data: ") == 5
    (seen,) = seen_by_engines(proxy)
    assert seen.body == body, "the body passes unchanged"
    await kit.until(lambda: not proxy.pool.in_flight)
    (record,) = proxy.pool.decisions.audit.latest(1)
    assert (record.outcome, record.prompt_tokens, record.cached_tokens) == ("Finished", 100, 64)
    assert record.ttft is not None
    assert routed(proxy) == 0


@pytest.mark.parametrize("size", [10, 8_000, 450_000])
async def test_bodies_of_each_size_pass_unchanged(behind_envoy: Any, kit: Any, size: int) -> None:
    proxy = await behind_envoy(engines=2, model={"maxLength": 400_000})
    body = json.dumps(kit.chat("word " * (size // 5))).encode()
    for _ in range(3):
        answer = await proxy.send(kit.request(body), kit.read_answer)
        assert answer.status == 200, answer.body
    assert [seen.body for seen in seen_by_engines(proxy)] == [body] * 3
    await kit.until(lambda: not proxy.pool.in_flight)
    assert proxy.pool.body_memory.used == 0


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"model": "tiny"}', b'{"model": "other", "messages": []}', b'{"a": 1, "a": 2}', b""],
)
async def test_errors_are_those_of_the_router(behind_envoy: Any, kit: Any, body: bytes) -> None:
    proxy = await behind_envoy(engines=1)
    through = await proxy.send(kit.request(body), kit.read_answer)
    direct = await proxy.running.post(body)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert 400 <= through.status < 500
    assert not seen_by_engines(proxy)
    assert proxy.pool.body_memory.used == 0


async def test_body_over_the_limit_is_refused(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1, limits={"maxBodyBytes": 100_000})
    answer = await proxy.send(kit.request(kit.chat("x" * 200_000)), kit.read_answer)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert proxy.pool.body_memory.used == 0


async def test_pool_without_a_replica_answers_503(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    proxy.running.write_members({"chat-0": "Draining"})
    await kit.until(lambda: not proxy.pool.fleet.candidates(proxy.pool.tick))
    answer = await proxy.send(kit.request(kit.chat()), kit.read_answer)
    assert (answer.status, answer.error["code"]) == (503, "no_replica")
    assert answer.headers["retry-after"] == "1"


async def test_request_waits_for_a_replica(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1, hold={"maxRequests": 8, "maxSeconds": 30})
    proxy.running.write_members({"chat-0": "Warming"})
    await kit.until(lambda: not proxy.pool.fleet.candidates(proxy.pool.tick))
    asking = asyncio.ensure_future(proxy.send(kit.request(kit.chat()), kit.read_answer))
    await kit.until(lambda: len(proxy.pool.wait_queue) == 1)
    proxy.running.write_members()
    assert (await asking).status == 200


async def test_keys_quotas_and_salts_are_those_of_the_router(behind_envoy: Any, kit: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice key-a\n")
    (tmp_path / "engine").write_text("engines-only\n")
    proxy = await behind_envoy(
        engines=1, auth={"apiKeysFile": str(tmp_path / "keys")}, engineApiKeyFile=str(tmp_path / "engine"),
        quotas=[{"tenant": "alice", "requestsPerMinute": 1}],
    )  # fmt: skip
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 401
    mine = kit.request(kit.chat(), authorization="Bearer key-a")
    assert (await proxy.send(mine, kit.read_answer)).status == 200
    (seen,) = seen_by_engines(proxy)
    assert seen.headers["authorization"] == "Bearer engines-only"
    assert seen.json["cache_salt"]
    refused = await proxy.send(mine, kit.read_answer)
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert proxy.pool.metrics.requests == 3, "each counts once"


async def test_client_that_leaves_frees_the_replica(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    (engine,) = proxy.running.engines
    engine.answer = kit.endless
    reader, writer = await proxy.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await reader.readuntil(b"data: ")
    assert routed(proxy) > 0
    writer.transport.abort()
    await kit.until(lambda: not proxy.pool.in_flight)
    assert routed(proxy) == 0
    await asyncio.wait_for(engine.closed.wait(), 30)
    (record,) = proxy.pool.decisions.audit.latest(1)
    assert record.outcome == "Aborted"


async def test_client_that_leaves_before_the_answer_frees_the_replica(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    asleep = asyncio.Event()

    async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asleep.wait()

    proxy.running.engines[0].answer = never
    _, writer = await proxy.connect()
    writer.write(kit.request(kit.chat()))
    await kit.until(lambda: routed(proxy) > 0)
    writer.transport.abort()
    await kit.until(lambda: not proxy.pool.in_flight)
    assert routed(proxy) == 0
    asleep.set()


async def test_silent_engine_is_given_up(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1, timeouts={"firstByte": 0.3})
    asleep = asyncio.Event()

    async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asleep.wait()

    proxy.running.engines[0].answer = never
    answer = await proxy.send(kit.request(kit.chat(stream=True)), kit.read_answer)
    assert (answer.status, answer.error["code"]) == (502, "upstream_silent")
    assert routed(proxy) == 0
    asleep.set()


async def test_stream_that_stops_is_cut(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1, timeouts={"idle": 0.3})
    asleep = asyncio.Event()

    async def stops(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("half")))
        await asleep.wait()

    proxy.running.engines[0].answer = stops
    with pytest.raises(asyncio.IncompleteReadError):
        await proxy.send(kit.request(kit.chat(stream=True)), kit.read_answer)
    await kit.until(lambda: not proxy.pool.in_flight)
    assert proxy.pool.metrics.truncated == 1
    assert routed(proxy) == 0
    asleep.set()


async def test_failures_open_the_breaker(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=2, breaker={"failures": 2})

    async def broken(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 4\r\n\r\nsad\n")

    proxy.running.engines[0].answer = broken
    statuses = [
        (await proxy.send(kit.request(kit.chat(f"question {number}")), kit.read_answer)).status for number in range(8)
    ]
    assert statuses.count(500) == 2, "then the replica is left out"
    assert routed(proxy) == 0


async def test_refusal_of_the_engine_passes(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)

    async def refuses(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    proxy.running.engines[0].answer = refuses
    answer = await proxy.send(kit.request(kit.chat()), kit.read_answer)
    assert (answer.status, answer.body) == (400, b"{}")
    await kit.until(lambda: not proxy.pool.in_flight)
    assert routed(proxy) == 0


async def test_only_known_paths_reach_an_engine(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)

    async def models(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\n{}")

    proxy.running.engines[0].answer = models
    listed = await proxy.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", kit.read_answer)
    assert (listed.status, listed.body) == (200, b"{}")
    dotted = await proxy.send(b"GET /v1/models/%2e%2e/metrics HTTP/1.1\r\nhost: x\r\n\r\n", kit.read_answer)
    assert dotted.status == 404
    for path in ("/sleep", "/v1/load_lora_adapter", "/metrics", "/v1/responses/resp_1/cancel"):
        answer = await proxy.send(kit.request({}, path=path), kit.read_answer)
        assert (answer.status, answer.error["code"]) == (404, "not_found")
    stored = await proxy.send(b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n", kit.read_answer)
    assert (stored.status, stored.error["code"]) == (404, "not_found")
    form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    answer = await proxy.send(head + b"content-length: %d\r\n\r\n" % len(form) + form, kit.read_answer)
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert "router's own port" in answer.error["message"]
    assert len(seen_by_engines(proxy)) == 1


async def test_no_engine_gets_a_clients_cookie_or_rank(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    more = {"cookie": "a=b", "x-data-parallel-rank": "3", "proxy-authorization": "Basic eA=="}
    answer = await proxy.send(kit.request(kit.chat(), **more), kit.read_answer)
    assert answer.status == 200
    (seen,) = seen_by_engines(proxy)
    assert not set(more) & {name.lower() for name in seen.headers}


async def test_client_that_leaves_early_pays_for_its_prompt(behind_envoy: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice sk-a\n")
    quotas = [{"tenant": "alice", "tokensPerMinute": 1_000}]
    proxy = await behind_envoy(engines=1, auth={"apiKeysFile": str(keys)}, quotas=quotas)

    async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    proxy.running.engines[0].answer = never
    words = " ".join(f"word{number}" for number in range(300))

    def decided() -> int:
        return len(seen_by_engines(proxy)) + proxy.pool.metrics.responses[429]

    for number in range(8):
        _, writer = await proxy.connect()
        body = {**kit.chat(), "messages": [{"role": "user", "content": words}], "max_tokens": 1}
        writer.write(kit.request(body, authorization="Bearer sk-a"))
        await kit.until(lambda at=number: decided() > at)
        writer.close()
        await kit.until(lambda: not proxy.pool.in_flight)
    assert 0 < len(seen_by_engines(proxy)) < 8
    assert not proxy.pool.usage.sums, "no engine answered, so there is nothing to bill"


async def test_texts_that_look_like_events_are_no_tokens(behind_envoy: Any, kit: Any) -> None:
    """Of an answer that is no stream and that reports no usage."""
    proxy = await behind_envoy(engines=1)
    body = json.dumps({"choices": [{"message": {"content": "data: data: data: "}}]}).encode()

    async def plain(seen: Any, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)

    proxy.running.engines[0].answer = plain
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 200
    await kit.until(lambda: not proxy.pool.in_flight)
    (sums,) = proxy.pool.usage.sums.values()
    assert (sums.estimated, sums.output) == (1, 0)


async def test_trailers_of_a_request_pass(behind_envoy: Any, kit: Any) -> None:
    def with_trailers(settings: Any, running: Any) -> None:
        listener = settings["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = {"enable_trailers": True}

    proxy = await behind_envoy(engines=1, change=with_trailers)
    body = json.dumps(kit.chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    sent = head + b"transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n" + kit.chunked(body) + b"0\r\nx-sum: 1\r\n\r\n"
    answer = await proxy.send(sent, kit.read_answer)
    assert answer.status == 200
    assert seen_by_engines(proxy)[0].body == body


async def test_body_may_be_buffered_by_the_proxy(behind_envoy: Any, kit: Any) -> None:
    """The mode of proxies that do not stream in both directions."""

    def buffered(settings: Any, running: Any) -> None:
        mode = ext_proc(settings)["processing_mode"]
        mode.update(
            request_body_mode="BUFFERED", response_body_mode="STREAMED", request_trailer_mode="SKIP",
            response_trailer_mode="SKIP",
        )  # fmt: skip

    proxy = await behind_envoy(engines=2, change=buffered)
    body = json.dumps(kit.chat(stream=True, stream_options={"include_usage": True})).encode()
    answer = await proxy.send(kit.request(body), kit.read_answer)
    assert (answer.status, answer.body.count(b"data: ")) == (200, 5)
    assert seen_by_engines(proxy)[0].body == body
    await kit.until(lambda: not proxy.pool.in_flight)
    (record,) = proxy.pool.decisions.audit.latest(1)
    assert (record.outcome, record.cached_tokens) == ("Finished", 64)


async def test_proxy_without_bodies_gets_an_error_that_names_the_setting(behind_envoy: Any, kit: Any) -> None:
    def without(settings: Any, running: Any) -> None:
        ext_proc(settings)["processing_mode"] = {"request_header_mode": "SEND"}

    proxy = await behind_envoy(engines=1, change=without)
    answer = await proxy.send(kit.request(kit.chat()), kit.read_answer)
    assert answer.status == 500
    assert "FULL_DUPLEX_STREAMED" in answer.error["message"]


async def test_without_the_picker_requests_fail_closed(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 200
    await proxy.running.router.stop(drain_seconds=0)
    answer = await proxy.send(kit.request(kit.chat()), kit.read_answer)
    assert answer.status >= 500
    assert len(seen_by_engines(proxy)) == 1


async def test_proxy_may_fail_open(behind_envoy: Any, kit: Any) -> None:
    """With endpoints of its own the proxy serves without a picker, but not what it has begun to stream to one."""

    def buffered(settings: Any, running: Any) -> None:
        with_override_host(settings, running)
        ext_proc(settings)["processing_mode"].update(request_body_mode="BUFFERED", request_trailer_mode="SKIP")

    proxy = await behind_envoy(engines=2, change=buffered)
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 200
    await proxy.running.router.stop(drain_seconds=0)
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 200
    assert len(seen_by_engines(proxy)) == 2


async def test_fallback_that_serves_gets_the_account(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(
        engines=2, change=with_override_host, picker={"fallbacks": 1}, timeouts={"probeInterval": 60}
    )
    await proxy.running.engines[0].stop()
    for number in range(4):
        answer = await proxy.send(kit.request(kit.chat(f"question {number}")), kit.read_answer)
        assert answer.status == 200
    await kit.until(lambda: not proxy.pool.in_flight)
    totals = {replica.id: replica.totals for replica in proxy.pool.fleet}
    assert totals["chat-0"].failed >= 1, "round robin chose it too"
    assert totals["chat-0"].finished == 0
    assert totals["chat-1"].finished == 4
    assert routed(proxy) == 0


async def test_picker_over_tls(behind_envoy: Any, kit: Any, tmp_path: Path) -> None:
    """The proxy verifies the router's certificate. What it began with it keeps; a new one is used from then on."""
    certificate = PortCertificate(tmp_path / "tls")

    def with_tls(settings: Any, running: Any) -> None:
        cluster(settings, "picker")["transport_socket"] = verified(certificate, "localhost", alpn=["h2"])

    listen = {"port": 0, "tls": certificate.settings}
    proxy = await behind_envoy(
        engines=1, change=with_tls, listen=listen, timeouts={"keepAlive": 0.3}, model={"maxLength": 400_000}
    )
    methods = proxy.running.router.endpoint_picker._methods
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 200
    certificate.renew(days=60)
    proxy.pool.refresh_keys()
    await kit.until(lambda: not methods.connections)
    body = json.dumps(kit.chat("word " * 90_000)).encode()
    for _ in range(3):
        assert (await proxy.send(kit.request(body), kit.read_answer)).status == 200
    assert proxy.running.router.endpoint_picker.tls.failed.total() == 0


async def test_picker_over_tls_is_verified(behind_envoy: Any, kit: Any, tmp_path: Path) -> None:
    certificate = PortCertificate(tmp_path / "tls")

    def with_tls(settings: Any, running: Any) -> None:
        cluster(settings, "picker")["transport_socket"] = verified(certificate, "another.example", alpn=["h2"])

    proxy = await behind_envoy(engines=1, change=with_tls, listen={"port": 0, "tls": certificate.settings})
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 500
    assert not seen_by_engines(proxy)


async def test_proxy_makes_tls_to_engines_itself(behind_envoy: Any, kit: Any, tmp_path: Path) -> None:
    """With `engine.tls`, as the how-to says: it trusts the authority, and asks for the name of the engines' Service."""
    certificate = PortCertificate(tmp_path / "tls", ["chat-engine.default.svc"])

    def with_tls(settings: Any, running: Any) -> None:
        cluster(settings, "replicas")["transport_socket"] = verified(certificate, "chat-engine.default.svc")

    trust = {"caFile": str(certificate.authority_file), "serverName": "chat-engine.default.svc"}
    proxy = await behind_envoy(engines=2, change=with_tls, tls=certificate.server(), engineTls=trust)
    for number in range(4):
        assert (await proxy.send(kit.request(kit.chat(f"{number}")), kit.read_answer)).status == 200
    assert len(seen_by_engines(proxy)) == 4


async def test_drain_ends_requests_that_began(behind_envoy: Any, kit: Any) -> None:
    proxy = await behind_envoy(engines=1)
    engine, go = proxy.running.engines[0], asyncio.Event()

    async def in_two_parts(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("before ")))
        await go.wait()
        writer.write(kit.chunked(kit.token("after")) + kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    engine.answer = in_two_parts
    reader, writer = await proxy.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    async with asyncio.timeout(30):
        await reader.readuntil(b"before ")
    stopping = asyncio.ensure_future(proxy.running.router.stop(drain_seconds=30))
    (connection,) = proxy.running.router.endpoint_picker._methods.connections
    await kit.until(lambda: connection._leaving)
    assert (await proxy.send(kit.request(kit.chat()), kit.read_answer)).status == 500, "nothing new"
    assert not stopping.done()
    go.set()
    async with asyncio.timeout(30):
        await reader.readuntil(b"0\r\n\r\n")
        await stopping
    (record,) = proxy.pool.decisions.audit.latest(1)
    assert record.outcome == "Finished"


def cluster(settings: Any, name: str) -> Any:
    (found,) = (one for one in settings["static_resources"]["clusters"] if one["name"] == name)
    return found


def verified(certificate: PortCertificate, name: str, *, alpn: Sequence[str] = ()) -> Any:
    """Envoy's settings to verify a server by its authority and DNS name."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": name,
            "common_tls_context": {
                "alpn_protocols": [*alpn],
                "validation_context": {
                    "trusted_ca": {"filename": str(certificate.authority_file)},
                    "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": name}}],
                },
            },
        },
    }


def ext_proc(settings: Any) -> Any:
    listener = settings["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]


def with_override_host(settings: Any, running: Any) -> None:
    """Envoy knows the endpoints itself, prefers what the picker says, tries fallbacks and serves without a picker."""
    ext_proc(settings)["failure_mode_allow"] = True
    (replicas,) = (one for one in settings["static_resources"]["clusters"] if one["name"] == "replicas")
    for name in ("lb_policy", "original_dst_lb_config"):
        del replicas[name]
    prefix = "type.googleapis.com/envoy.extensions.load_balancing_policies"
    spare = {"name": "round_robin", "typed_config": {"@type": f"{prefix}.round_robin.v3.RoundRobin"}}
    override = {
        "@type": f"{prefix}.override_host.v3.OverrideHost",
        "override_host_sources": [
            {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}},
        ],
        "fallback_policy": {"policies": [{"typed_extension_config": spare}]},
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]},
    }
    policy = {"typed_extension_config": {"name": "override_host", "typed_config": override}}
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": one.port}} for one in running.engines]
    replicas.update(
        type="STATIC",
        load_balancing_policy={"policies": [policy]},
        load_assignment={
            "cluster_name": "replicas",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}],
        },
    )
    listener = settings["static_resources"]["listeners"][0]
    hosts = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    hosts[0]["routes"][0]["route"]["retry_policy"] = {"retry_on": "connect-failure", "num_retries": 2}


@pytest.mark.redis
async def test_request_for_an_adapter_that_no_replica_has_is_refused_at_once(behind_envoy: Any, kit: Any) -> None:
    """Others wait for a replica; this one would wait for a person who loads the adapter."""
    with LocalServer() as server:
        proxy = await behind_envoy(
            engines=1, model={"adapters": ["sql", "law"], "adapterSlots": 4}, directoryUrl=server.url,
            hold={"maxRequests": 8, "maxSeconds": 30},
        )  # fmt: skip
        async with DirectoryWriter(server.url, pool="chat", replica="chat-0", heartbeat_seconds=0.1) as writer:
            writer.report(state=State.READY, load=Load(served=("sql",)))
            adapters, fleet = proxy.pool.decider.adapters, proxy.pool.fleet
            await kit.until(lambda: not adapters.serving("law", [one.load for one in fleet]))
            refused = await proxy.send(kit.request(kit.chat(model="law")), kit.read_answer)
            assert (refused.status, refused.error["code"]) == (503, "adapter_not_loaded")
            assert not len(proxy.pool.wait_queue)
            assert (await proxy.send(kit.request(kit.chat(model="sql")), kit.read_answer)).status == 200


async def test_traced_request_has_the_spans_of_the_router(behind_envoy: Any, kit: Any) -> None:
    with received_spans() as spans:
        tracing = {"endpoint": spans.endpoint, "samplingRatePerMillion": 1_000_000, "service": "picker"}
        proxy = await behind_envoy(engines=2, tracing=tracing)
        body = kit.chat(stream=True, stream_options={"include_usage": True})
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        for headers in ({"traceparent": parent, "tracestate": "a=1"}, {"tracestate": "b=2"}):
            assert (await proxy.send(kit.request(body, **headers), kit.read_answer)).status == 200
        assert (await proxy.send(kit.request(b"{"), kit.read_answer)).status == 400
        await kit.until(lambda: not proxy.pool.in_flight)
        await proxy.pool.tracing.close()
    theirs, own = spans.named("chat tiny")
    first, second, refused = spans.named("POST /v1/chat/completions")
    assert (first.trace, first.parent, theirs.parent, own.parent) == ("a" * 32, "b" * 16, first.id, second.id)
    assert second.parent == ""
    assert theirs.events == ["first token"]
    assert first.attributes["gen_ai.usage.input_tokens"] == 100
    assert refused.attributes["http.response.status_code"] == 400
    assert sorted(seen.headers["traceparent"] for seen in seen_by_engines(proxy)) == sorted(
        f"00-{span.trace}-{span.id}-01" for span in (theirs, own)
    )
    assert sorted(seen.headers.get("tracestate", "") for seen in seen_by_engines(proxy)) == ["", "a=1"]


async def test_silent_engine_is_an_error_in_the_trace(behind_envoy: Any, kit: Any) -> None:
    with received_spans() as spans:
        tracing = {"endpoint": spans.endpoint, "samplingRatePerMillion": 1_000_000, "service": "picker"}
        proxy = await behind_envoy(engines=1, tracing=tracing, timeouts={"firstByte": 0.3})
        asleep = asyncio.Event()

        async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
            await asleep.wait()

        proxy.running.engines[0].answer = never
        assert (await proxy.send(kit.request(kit.chat(stream=True)), kit.read_answer)).status == 502
        asleep.set()
        await proxy.pool.tracing.close()
    (attempt,) = spans.named("chat tiny")
    assert attempt.failed
    assert attempt.attributes["error.type"] == "first_byte_timeout"
