"""Traces: which requests have spans, what the spans say, and that a collector can neither slow nor fill the router."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.conditions import until
from support.otlp import Spans, received_spans

from plumage_router.proxy import tracing as module
from plumage_router.proxy.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, CLIENT = 2, 3
SECRET = "sk-acme-0123456789abcdef"


@pytest.fixture
def collector() -> Iterator[Spans]:
    with received_spans() as spans:
        yield spans


def settings(collector: Spans, rate: int = 0) -> dict[str, Any]:
    return {"endpoint": collector.endpoint, "samplingRatePerMillion": rate, "service": "chat-router"}


def header(flags: str = "01", trace: str = TRACE) -> str:
    return f"00-{trace}-{PARENT}-{flags}"


async def exported(running: Any) -> Tracing:
    """Waits until all ended spans are with the collector."""
    tracing: Tracing = running.router.pool.tracing.current
    await running.router.pool.tracing.close()
    return tracing


async def test_trace_goes_from_client_to_engine(start: Any, kit: Any, collector: Spans) -> None:
    running = await start(engines=2, tracing=settings(collector))
    sent = await running.post(kit.chat("my prompt", stream=True), traceparent=header(), tracestate="a=1")
    assert sent.status == 200
    await exported(running)
    [attempt] = collector.named("chat tiny")
    [request] = collector.named("POST /v1/chat/completions")
    [seen] = [seen for engine in running.engines for seen in engine.seen]
    assert seen.headers["traceparent"] == f"00-{TRACE}-{attempt.id}-01"
    assert seen.headers["tracestate"] == "a=1"
    assert (request.trace, request.parent, request.kind, request.service) == (TRACE, PARENT, SERVER, "chat-router")
    assert (attempt.trace, attempt.parent, attempt.kind) == (TRACE, request.id, CLIENT)
    assert attempt.events == ["first token"]
    wanted = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny", "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 64, "gen_ai.usage.output_tokens": 3, "plumage.attempt": 1,
        "plumage.candidates": 2, "plumage.predicted_cached_tokens": 0, "server.address": "127.0.0.1",
        "http.response.status_code": 200,
    }  # fmt: skip
    assert {name: attempt.attributes[name] for name in wanted} == wanted
    assert 0 <= attempt.attributes["plumage.wait_seconds"] <= request.attributes["plumage.ttft_seconds"]
    wanted = {
        "http.response.status_code": 200, "plumage.outcome": "Finished", "plumage.pool": "chat",
        "gen_ai.usage.output_tokens": 3,
        "plumage.request_id": sent.headers["x-request-id"], "plumage.replica": attempt.attributes["plumage.replica"],
    }  # fmt: skip
    assert {name: request.attributes[name] for name in wanted} == wanted
    assert "my prompt" not in str(collector.spans)


@pytest.mark.parametrize(
    ("rate", "given", "traced"),
    [
        (0, None, False),
        (1_000_000, None, True),
        (1_000_000, header("00"), False),
        (0, header("01"), True),
        (0, "nonsense", False),
        (1_000_000, "nonsense", True),
        (0, header("01", trace="0" * 32), False),
        (0, header("01") + "-more", False),
    ],
)
async def test_client_decides_and_a_share_of_the_others_is_traced(
    start: Any, kit: Any, collector: Spans, rate: int, given: str | None, traced: bool
) -> None:
    running = await start(engines=1, tracing=settings(collector, rate))
    assert (await running.post(kit.chat(), **({} if given is None else {"traceparent": given}))).status == 200
    await exported(running)
    assert len(collector.spans) == (2 if traced else 0)
    [seen] = running.engines[0].seen
    if traced:
        assert seen.headers["traceparent"].split("-")[2] == collector.named("chat")[0].id
    else:
        assert seen.headers.get("traceparent") == given


async def test_failed_attempts_and_refusals_are_in_the_trace(start: Any, kit: Any, collector: Spans) -> None:
    running = await start(engines=2, tracing=settings(collector, 1_000_000))

    async def fails(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")

    for engine in running.engines:
        engine.answer = fails
    assert (await running.post(kit.chat())).status == 502
    assert (await running.post(kit.chat(priority=1))).status == 400
    await exported(running)
    first, second = collector.named("chat tiny")
    failed, refused = collector.named("POST")
    assert [span.attributes["plumage.attempt"] for span in (first, second)] == [1, 2]
    assert {span.attributes["error.type"] for span in (first, second)} == {"http_500"}
    assert first.failed
    assert (failed.attributes["http.response.status_code"], failed.failed) == (502, True)
    assert (refused.attributes["error.type"], refused.failed) == ("field_not_allowed", False)


async def test_no_key_is_in_a_span_and_none_is_made_before_the_key_is_checked(
    start: Any, kit: Any, collector: Spans, tmp_path: Any
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"acme {SECRET}\n")
    running = await start(engines=1, tracing=settings(collector), auth={"apiKeysFile": str(keys)})
    bearer = {"authorization": f"Bearer {SECRET}"}
    assert (await running.post(kit.chat(), traceparent=header(), **bearer)).status == 200
    assert (await running.post(kit.chat(), traceparent=header(), authorization="Bearer wrong")).status == 401
    await exported(running)
    assert len(collector.named("POST")) == 1
    assert collector.named("POST")[0].attributes["plumage.tenant"] == "acme"
    assert SECRET not in str(collector.spans)


async def test_aborted_request_ends_its_spans(start: Any, kit: Any, collector: Spans) -> None:
    running = await start(engines=1, tracing=settings(collector, 1_000_000))

    async def hangs(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    running.engines[0].answer = hangs
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await until(lambda: running.engines[0].seen, pause=0.01)
    writer.transport.abort()
    await until(lambda: not running.router.pool.in_flight, pause=0.01)
    await exported(running)
    [request] = collector.named("POST")
    assert (request.attributes["plumage.outcome"], request.attributes["http.response.status_code"]) == ("Aborted", 499)
    assert len(collector.named("chat")) == 1


async def test_refusing_collector_stops_tracing_and_not_the_requests(
    start: Any, kit: Any, collector: Spans, few: None
) -> None:
    collector.status = 400  # not tried again
    running = await start(engines=1, tracing=settings(collector, 1_000_000))
    for _ in range(6):
        assert (await running.post(kit.chat())).status == 200
    assert (await running.post(kit.chat(), traceparent=header())).status == 200
    assert running.engines[0].seen[-1].headers["traceparent"] == header("00"), "the engine shall not trace it either"
    assert await running.metric("plumage_router_untraced_requests_total") == 5
    tracing = await exported(running)
    assert (tracing.skipped, tracing.exported, tracing.failed) == (5, 0, 4)


async def test_failed_attempts_do_not_exceed_the_bound(start: Any, kit: Any, collector: Spans, few: None) -> None:
    running = await start(engines=2, tracing=settings(collector, 1_000_000))

    async def fails(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")

    for engine in running.engines:
        engine.answer = fails
    for number in range(8):
        assert (await running.post(kit.chat(f"{number}"))).status in (502, 503)
    tracing = await exported(running)
    assert tracing.exported == 4, "spans above the bound do not begin, so none is lost uncounted"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router with four spans at most, which exports them at its end."""
    monkeypatch.setattr(module, "MAX_SPANS", 4)
    monkeypatch.setattr(module, "_BATCH", 8)
    monkeypatch.setattr(module, "_EVERY_MS", 3_600_000.0)


async def test_hanging_collector_delays_neither_requests_nor_a_change(start: Any, kit: Any) -> None:
    with socket.socket() as silent:  # the system accepts connections, and nobody reads
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        await _change_while_exporting(start, kit, endpoint)


async def _change_while_exporting(start: Any, kit: Any, endpoint: str) -> None:
    running = await start(
        engines=1, tracing={"endpoint": endpoint, "samplingRatePerMillion": 1_000_000, "service": "s"}
    )
    assert (await running.post(kit.chat())).status == 200
    live = running.router.pool.tracing
    await live.follow(None)
    assert "last spans" in {thread.name for thread in threading.enumerate()}, "it did not wait for the collector"
    assert live.current is None
    assert (await running.post(kit.chat())).status == 200


async def test_hostile_trace_headers_reach_no_log_and_no_span(
    start: Any, kit: Any, collector: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(engines=1, tracing=settings(collector, 1_000_000))
    state = "Member [31m fake=" + "x" * 6000
    for given in (header(), header() + "-more", "ff" + header()[2:], "0" * 600, header("01").upper()):
        assert (await running.post(kit.chat(), traceparent=given, tracestate=state)).status == 200
    continued = [seen.headers.get("tracestate") is not None for seen in running.engines[0].seen]
    assert continued == [True, False, False, False, False], "a new trace does not have the client's state"
    await exported(running)
    assert len(collector.named("POST")) == 5
    assert "fake" not in str(collector.spans)
    named = [record for record in caplog.records if "opentelemetry" in record.name]
    assert [one for one in named if not one.getMessage().startswith("Transient error")] == [], "but a slow collector"


async def test_disabled_sdk_traces_nothing(
    start: Any, kit: Any, collector: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    running = await start(engines=1, tracing=settings(collector, 1_000_000))
    assert (await running.post(kit.chat())).status == 200
    assert "traceparent" not in running.engines[0].seen[0].headers


async def test_attempt_that_the_router_gave_up_is_an_error(start: Any, kit: Any, collector: Spans) -> None:
    timeouts = {"request": 0.3, "firstByte": 60, "idle": 60}
    running = await start(engines=1, tracing=settings(collector, 1_000_000), timeouts=timeouts)

    async def hangs(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    running.engines[0].answer = hangs
    assert (await running.post(kit.chat())).status == 504
    await exported(running)
    [attempt], [request] = collector.named("chat"), collector.named("POST")
    assert (attempt.failed, attempt.attributes["error.type"]) == (True, "timeout")
    assert (request.failed, request.attributes["error.type"]) == (True, "timeout")
