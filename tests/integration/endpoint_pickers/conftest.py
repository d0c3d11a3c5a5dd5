"""The picker under test: the one at $PICKER, or one of Plumage that is started here. README.md has the settings."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from support.ext_proc import METHOD, ext_proc
from support.ports import free_port

SECONDS = float(os.environ.get("PICKER_SECONDS", "20"))
"""The longest wait for an answer."""
FULL_DUPLEX = 4
DESTINATION = "x-gateway-destination-endpoint"
PIECE = 16_384  # bytes


@dataclass(frozen=True)
class Target:
    """address: of the picker. model: that its engines serve. endpoints: that it knows; empty if they are unknown."""

    address: str
    model: str
    endpoints: tuple[str, ...]


@pytest.fixture(scope="session")
def protos() -> ModuleType:
    return ext_proc()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if address := os.environ.get("PICKER"):
        known = os.environ.get("PICKER_ENDPOINTS", "")
        yield Target(address, os.environ.get("PICKER_MODEL", "tiny"), tuple(known.split(",")) if known else ())
        return
    with _Engines(3) as engines:
        yield from _own(tmp_path_factory.mktemp("picker"), engines)


class _Engines:
    """HTTP servers that are healthy and nothing else."""

    def __init__(self, number: int) -> None:
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) for _ in range(number)]

    def __enter__(self) -> Sequence[int]:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return [server.server_address[1] for server in self._servers]

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


def _own(folder: Path, engines: Sequence[int]) -> Iterator[Target]:
    """Plumage's own picker, in a process."""
    port, replicas = free_port(), [f"127.0.0.1:{one}" for one in engines]
    members = [{"id": f"chat-{n}", "url": f"http://{one}", "state": "Ready"} for n, one in enumerate(replicas)]
    (folder / "members.json").write_text(json.dumps({"pool": "chat", "replicas": members}))
    config = {
        "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat", "maxLength": 400_000},
        "membershipFile": str(folder / "members.json"), "listen": {"port": 0}, "endpointPicker": {"port": port},
        "limits": {"maxBodyBytes": 4 << 20},
    }  # fmt: skip
    (folder / "router.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "plumage_router", "--config", str(folder / "router.json"), "--log-level", "ERROR"]
    process = subprocess.Popen(command)
    try:
        _await(port, process)
        yield Target(f"127.0.0.1:{port}", "tiny", tuple(replicas))
        assert process.poll() is None, "the picker ended during its tests"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the port accepts: gRPC waits longer after each failure."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the picker did not start")


class Exchange:
    """One call of the picker: what Envoy does for one request of a client."""

    def __init__(self, call: Any, protos: ModuleType, target: Target) -> None:
        self.call = call
        self.protos = protos
        self._target = target
        self._first = True
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the call ended
        self._pump = asyncio.ensure_future(self._read())

    # -- what Envoy sends ---------------------------------------------------------------------------------------------

    async def send(self, **more: Any) -> None:
        """A ProcessingRequest with these fields. The first one says how bodies are sent, as Envoy does."""
        message = self.protos.ProcessingRequest(**more)
        if self._first:
            self._first = False
            message.protocol_config.request_body_mode = message.protocol_config.response_body_mode = FULL_DUPLEX
        async with asyncio.timeout(SECONDS):
            await self.call.write(message.SerializeToString())

    async def request_headers(
        self,
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        end: bool = False,
        subset: Sequence[str] | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        pairs = [(":method", method), (":path", path), (":authority", "pool"), (":scheme", "http"),
                 ("content-type", "application/json"), *headers]  # fmt: skip
        more: dict[str, Any] = {}
        if subset is not None:
            metadata = self.protos.Metadata()
            metadata.filter_metadata["envoy.lb.subset_hint"]["x-gateway-destination-endpoint-subset"] = list(subset)
            more["metadata_context"] = metadata
        await self.send(request_headers=self._headers(pairs, end), **more)

    async def request_body(self, body: bytes, *, end: bool = True, piece: int = PIECE) -> None:
        for at in range(0, max(1, len(body)), piece):
            last = at + piece >= len(body)
            await self.send(request_body=self.protos.HttpBody(body=body[at : at + piece], end_of_stream=end and last))

    async def request_trailers(self) -> None:
        await self.send(request_trailers=self._trailers())

    async def response_headers(self, status: int = 200, *, kind: str = "application/json", end: bool = False) -> None:
        pairs = [(":status", str(status)), ("content-type", kind)]
        await self.send(response_headers=self._headers(pairs, end))

    async def response_body(self, body: bytes, *, end: bool = False) -> None:
        await self.send(response_body=self.protos.HttpBody(body=body, end_of_stream=end))

    async def response_trailers(self) -> None:
        await self.send(response_trailers=self._trailers())

    def chat(self, text: str = "hello", **more: Any) -> bytes:
        content = {"model": self._target.model, "messages": [{"role": "user", "content": text}], **more}
        return json.dumps(content, ensure_ascii=False).encode()

    # -- what the picker sends ----------------------------------------------------------------------------------------

    async def next(self) -> bytes | None:
        """The next message; None once the call ended. AssertionError if neither comes in time."""
        try:
            async with asyncio.timeout(SECONDS):
                data = await self._answers.get()
        except TimeoutError:
            raise AssertionError("the picker neither answered nor ended the call in time") from None
        if data is None:
            self._answers.put_nowait(None)
        return data

    async def answer(self) -> Any:
        """The next ProcessingResponse. AssertionError if the call ends or nothing comes."""
        data = await self.next()
        assert data is not None, f"the picker ended the call: {await self.status()}"
        return self.protos.ProcessingResponse.FromString(data)

    async def part(self, phase: str) -> Any:
        """The next answer, which must be of this phase."""
        answer = await self.answer()
        assert answer.WhichOneof("response") == phase, f"{answer.WhichOneof('response')} came instead of {phase}"
        return getattr(answer, phase)

    async def destination(self) -> tuple[str, Any]:
        """From the answer to the request's headers: the endpoints, and the answer."""
        answer = await self.answer()
        assert answer.WhichOneof("response") == "request_headers", answer
        return destination_of(answer), answer

    async def body(self, phase: str, size: int, *, end: bool = True) -> bytes:
        """The pieces of a streamed body of so many bytes."""
        found = b""
        while True:
            mutation = (await self.part(phase)).response.body_mutation
            assert mutation.WhichOneof("mutation") == "streamed_response", "full duplex needs streamed_response"
            found += mutation.streamed_response.body
            assert len(found) <= size, "the picker sent more than it got"
            if mutation.streamed_response.end_of_stream:
                assert end, "the picker ended a body whose end it has not seen"
                return found
            if len(found) == size and not end:
                return found

    async def refusal_or_destination(self) -> Any:
        """An ImmediateResponse, or None if the picker chose an endpoint."""
        answer = await self.answer()
        if answer.WhichOneof("response") == "immediate_response":
            return answer.immediate_response
        assert destination_of(answer)
        return None

    async def finished(self) -> grpc.StatusCode:
        """The status of the call, after what the picker still sends."""
        while await self.next() is not None:
            pass
        return await self.status()

    async def status(self) -> grpc.StatusCode:
        """Of a call that ended."""
        async with asyncio.timeout(SECONDS):
            found: grpc.StatusCode = await self.call.code()
            return found

    async def _read(self) -> None:
        """Reads in a task of its own, since gRPC ends a call whose reading is cancelled."""
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            while (data := await self.call.read()) is not grpc.aio.EOF:
                self._answers.put_nowait(data)
        self._answers.put_nowait(None)

    async def end(self) -> None:
        self.call.cancel()
        await asyncio.wait((self._pump,), timeout=SECONDS)

    async def pick(self, text: str = "hello", **more: Any) -> str:
        """A whole request. Returns the endpoints."""
        body = self.chat(text)
        await self.request_headers(**more)
        await self.request_body(body)
        found, _ = await self.destination()
        assert await self.body("request_body", len(body)) == body
        return found

    async def respond(self, body: bytes = b"{}") -> None:
        """A whole response."""
        await self.response_headers()
        await self.part("response_headers")
        await self.response_body(body, end=True)
        assert await self.body("response_body", len(body)) == body
        await self.call.done_writing()
        assert await self.finished() is grpc.StatusCode.OK

    def _headers(self, pairs: Sequence[tuple[str, str]], end: bool) -> Any:
        values = [self.protos.HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs]
        return self.protos.HttpHeaders(headers=self.protos.HeaderMap(headers=values), end_of_stream=end)

    def _trailers(self) -> Any:
        values = [self.protos.HeaderValue(key="x-checksum", raw_value=b"1")]
        return self.protos.HttpTrailers(trailers=self.protos.HeaderMap(headers=values))


def destination_of(answer: Any) -> str:
    """The endpoints in an answer's header mutation; "" without one."""
    mutation = answer.request_headers.response.header_mutation
    values = [one.header for one in mutation.set_headers if one.header.key.lower() == DESTINATION]
    assert len(values) <= 1, "the destination is there twice"
    return (values[0].raw_value.decode() or values[0].value) if values else ""


class Picker:
    """Opens calls."""

    def __init__(self, channel: Any, target: Target, protos: ModuleType) -> None:
        self.channel = channel
        self.target = target
        self.protos = protos
        self._process = channel.stream_stream(METHOD)
        self._exchanges: list[Exchange] = []

    def open(self, **more: Any) -> Exchange:
        self._exchanges.append(Exchange(self._process(**more), self.protos, self.target))
        return self._exchanges[-1]

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.end()


@pytest.fixture
async def picker(target: Target, protos: ModuleType) -> AsyncIterator[Picker]:
    async with grpc.aio.insecure_channel(target.address) as channel:
        async with asyncio.timeout(60):
            await channel.channel_ready()
        opened = Picker(channel, target, protos)
        yield opened
        await opened.close()
