"""What a proxy may do at any time, and what a picker must survive: each test asks a second time afterwards."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

SIZE = int(os.environ.get("PICKER_LARGE_BYTES", str(32 << 20)))
"""Bytes of a body that most pickers refuse."""


@pytest.fixture(autouse=True)
async def still_serves(picker: Any) -> AsyncIterator[None]:
    yield
    exchange = picker.open()
    assert await exchange.pick("afterwards")
    await exchange.respond()


async def test_proxy_may_leave_after_the_headers(picker: Any) -> None:
    """Envoy half-closes when its client left. The picker ends the call too, since Envoy waits for that."""
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.call.done_writing()
    await exchange.finished()


async def test_proxy_may_leave_within_the_body(picker: Any) -> None:
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_body(exchange.chat("word " * 1000)[:2000], end=False)
    await exchange.call.done_writing()
    await exchange.finished()


async def test_proxy_may_leave_before_and_within_the_answer(picker: Any) -> None:
    before, within = picker.open(), picker.open()
    await before.pick()
    await before.call.done_writing()
    assert await before.finished() is grpc.StatusCode.OK
    await within.pick()
    await within.response_headers(kind="text/event-stream")
    await within.part("response_headers")
    await within.response_body(b"data: {}\n\n")
    await within.call.done_writing()
    assert await within.finished() is grpc.StatusCode.OK


async def test_cancelled_calls(picker: Any) -> None:
    for _ in range(50):
        exchange = picker.open()
        await exchange.request_headers()
        await exchange.request_body(exchange.chat()[:20], end=False)
        exchange.call.cancel()


async def test_call_without_a_message(picker: Any) -> None:
    exchange = picker.open()
    await exchange.call.done_writing()
    await exchange.finished()


async def test_unknown_fields_are_ignored(picker: Any) -> None:
    """Of a newer Envoy: field 200 in the message, and attributes."""
    exchange = picker.open()
    protos = exchange.protos
    pairs = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")]
    values = [protos.HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs]
    message = protos.ProcessingRequest(request_headers=protos.HttpHeaders(headers=protos.HeaderMap(headers=values)))
    message.attributes["envoy.filters.http.ext_proc"]["request.id"] = "7"
    message.protocol_config.request_body_mode = message.protocol_config.response_body_mode = 4
    await exchange.call.write(message.SerializeToString() + b"\xc2\x0c\x03new")
    exchange._first = False
    await exchange.request_body(exchange.chat())
    assert (await exchange.destination())[0]


async def test_message_of_no_known_phase(picker: Any) -> None:
    """It is ignored, or ends the call; it is not taken for another phase."""
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.call.write(b"\xc2\x0c\x03new")
    body = exchange.chat()
    try:
        await exchange.request_body(body)
        assert (await exchange.destination())[0]
        assert await exchange.body("request_body", len(body)) == body
    except (AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        assert await exchange.finished() is not grpc.StatusCode.OK


async def test_bytes_that_are_no_message(picker: Any) -> None:
    exchange = picker.open()
    await exchange.call.write(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
    assert await exchange.finished() is not grpc.StatusCode.OK


@pytest.mark.parametrize("first", ["request_body", "request_trailers", "response_body", "response_trailers"])
async def test_phase_that_cannot_come_first(picker: Any, first: str) -> None:
    """An error of the call or an ImmediateResponse; no destination, and no wait."""
    exchange = picker.open()
    if first.endswith("body"):
        await exchange.send(**{first: exchange.protos.HttpBody(body=b"{}", end_of_stream=True)})
    else:
        await getattr(exchange, first)()
    await refused(exchange)


async def test_second_headers(picker: Any) -> None:
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_headers()
    await refused(exchange)


async def refused(exchange: Any) -> None:
    data = await exchange.next()
    if data is None:
        assert await exchange.status() is not grpc.StatusCode.OK
        return
    answer = exchange.protos.ProcessingResponse.FromString(data)
    assert answer.WhichOneof("response") == "immediate_response", answer


async def test_proxy_may_answer_while_the_body_arrives(picker: Any) -> None:
    """Envoy answers a client itself, for example at a timeout, and shows that answer too."""
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_body(exchange.chat("word " * 100)[:100], end=False)
    await exchange.response_headers(408, end=True)
    await exchange.part("response_headers")
    await exchange.call.done_writing()
    await exchange.finished()


@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'"text"', b"\xff\xfe", b'{"model": 3}', b"null"])
async def test_body_that_is_no_request(picker: Any, body: bytes) -> None:
    """A refusal of the client (4xx), or a choice without the body; never an error of the call."""
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_body(body)
    refusal = await exchange.refusal_or_destination()
    assert refusal is None or 400 <= refusal.status.code < 500


async def test_deep_json(picker: Any) -> None:
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_body(b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}")
    refusal = await exchange.refusal_or_destination()
    assert refusal is None or 400 <= refusal.status.code < 500


async def test_large_body_is_served_or_refused(picker: Any) -> None:
    exchange = picker.open()
    body = exchange.chat("word " * (SIZE // 5))
    await exchange.request_headers(headers=[("content-length", str(len(body)))])

    async def send() -> None:
        try:
            await exchange.request_body(body, piece=65_536)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            return  # the picker ended the call

    sending = asyncio.ensure_future(send())
    refusal = await exchange.refusal_or_destination()
    if refusal is None:
        assert await exchange.body("request_body", len(body)) == body
    else:
        assert refusal.status.code in (400, 413, 429, 503)
    sending.cancel()
    await asyncio.wait((sending,))


async def test_many_headers(picker: Any) -> None:
    exchange = picker.open()
    await exchange.request_headers(headers=[(f"x-header-{number}", "v" * 20) for number in range(60)])
    await exchange.request_body(exchange.chat())
    assert (await exchange.destination())[0]


async def test_compressed_messages(picker: Any) -> None:
    """gRPC lets a caller compress: they are read, or the call ends with UNIMPLEMENTED."""
    exchange = picker.open(compression=grpc.Compression.Gzip)
    try:
        assert await exchange.pick("word " * 500)
    except (AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        assert await exchange.finished() is grpc.StatusCode.UNIMPLEMENTED


async def test_unknown_method(picker: Any) -> None:
    call = picker.channel.unary_unary("/envoy.service.ext_proc.v3.ExternalProcessor/Other")(b"")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_check(picker: Any) -> None:
    """grpc.health.v1: Kubernetes probes use it. 1 is SERVING."""
    assert await picker.channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
