"""Small pickers on gRPC's own server, a right one and one for each fault. `python faulty_picker.py` prints their ports.

The suite for pickers of any make must pass with the right one, and find each fault.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from support.ext_proc import ext_proc

__all__ = ["ENDPOINTS", "FAULTS", "MODEL"]

ENDPOINTS = ("127.0.0.1:9101", "127.0.0.1:9102")
MODEL = "any"
NONE = "none"
FAULTS = {
    "no-metadata": "test_destination.py::test_destination_is_in_header_and_metadata",
    "no-subset": "test_destination.py::test_subset_is_kept",
    "drops-a-piece": "test_full_duplex.py::test_request_body_comes_back_unchanged",
    "headers-late": "test_full_duplex.py::test_headers_are_answered_once_and_first",
    "holds-responses": "test_full_duplex.py::test_response_passes_piece_by_piece",
    "shares-bodies": "test_full_duplex.py::test_parallel_calls_keep_their_bodies",
    "any-order": "test_robustness.py::test_second_headers",
    "fails-on-json": "test_robustness.py::test_body_that_is_no_request",
}
"""A fault, and the test that must find it."""

KEY = "x-gateway-destination-endpoint"
PIECE = 65_536
protos = ext_proc()


class OrderError(Exception):
    """The proxy sent what cannot come now."""


class Picked:
    """One call."""

    shared = bytearray()

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.body = self.shared if fault == "shares-bodies" else bytearray()
        self.held = bytearray()
        self.seen: set[str] = set()
        self.subset: list[str] | None = None

    def answers(self, message: Any) -> list[Any]:
        phase = message.WhichOneof("request")
        if phase is None:
            return []
        self._check(phase)
        self.seen.add(phase)
        return list(getattr(self, phase)(getattr(message, phase), message))

    def _check(self, phase: str) -> None:
        if self.fault == "any-order":
            return
        first = "request_headers" in self.seen
        if first == (phase == "request_headers") or (phase == "request_body" and "done" in self.seen):
            raise OrderError(phase)
        if phase in ("response_body", "response_trailers") and "response_headers" not in self.seen:
            raise OrderError(phase)

    def request_headers(self, headers: Any, message: Any) -> list[Any]:
        known = message.metadata_context.filter_metadata
        if "envoy.lb.subset_hint" in known:
            self.subset = list(known["envoy.lb.subset_hint"]["x-gateway-destination-endpoint-subset"])
        if headers.end_of_stream:
            return self._choose()
        return []

    def request_body(self, part: Any, message: Any) -> list[Any]:
        self.body += part.body
        return self._answer(end=True) if part.end_of_stream else []

    def request_trailers(self, part: Any, message: Any) -> list[Any]:
        return [*self._answer(end=False), self._of("request_trailers", protos.TrailersResponse())]

    def response_headers(self, part: Any, message: Any) -> list[Any]:
        return [self._of("response_headers", protos.HeadersResponse())]

    def response_body(self, part: Any, message: Any) -> list[Any]:
        self.held += part.body
        if self.fault == "holds-responses" and not part.end_of_stream:
            return []
        body, self.held = bytes(self.held), bytearray()
        return [self._streamed("response_body", body, end=part.end_of_stream)]

    def response_trailers(self, part: Any, message: Any) -> list[Any]:
        return [self._of("response_trailers", protos.TrailersResponse())]

    def _answer(self, *, end: bool) -> list[Any]:
        self.seen.add("done")
        body = bytes(self.body)
        if self.fault == "shares-bodies":
            self.body.clear()
        if self.fault == "fails-on-json" and not body.startswith(b"{"):
            raise ValueError("no JSON")
        chosen = self._choose()
        if chosen[0].WhichOneof("response") == "immediate_response":
            return chosen
        if self.fault == "drops-a-piece":
            body = body[:-1]
        pieces = [body[at : at + PIECE] for at in range(0, max(1, len(body)), PIECE)]
        ends = [end and n == len(pieces) - 1 for n in range(len(pieces))]
        streamed = [self._streamed("request_body", one, end=last) for one, last in zip(pieces, ends, strict=True)]
        return [*streamed, *chosen] if self.fault == "headers-late" else [*chosen, *streamed]

    def _choose(self) -> list[Any]:
        allowed = [one for one in ENDPOINTS if self.subset is None or self.fault == "no-subset" or one in self.subset]
        if not allowed:
            status = protos.HttpStatus(code=503)
            return [self._of("immediate_response", protos.ImmediateResponse(status=status, body=b"none"))]
        (endpoint, *_) = allowed
        header = protos.HeaderValueOption(
            header=protos.HeaderValue(key=KEY, raw_value=endpoint.encode()),
            append_action=2,
        )
        common = protos.CommonResponse(header_mutation=protos.HeaderMutation(set_headers=[header]))
        answer = self._of("request_headers", protos.HeadersResponse(response=common))
        if self.fault != "no-metadata":
            answer.dynamic_metadata["envoy.lb"] = {KEY: endpoint}
        return [answer]

    def _streamed(self, phase: str, body: bytes, *, end: bool) -> Any:
        streamed = protos.StreamedBodyResponse(body=body, end_of_stream=end)
        common = protos.CommonResponse(body_mutation=protos.BodyMutation(streamed_response=streamed))
        return self._of(phase, protos.BodyResponse(response=common))

    def _of(self, phase: str, content: Any) -> Any:
        return protos.ProcessingResponse(**{phase: content})


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def service(self, details: Any) -> Any:
        if details.method.endswith("/Process"):
            return grpc.stream_stream_rpc_method_handler(self._process)
        if details.method.endswith("Health/Check"):
            return grpc.unary_unary_rpc_method_handler(self._check)
        return None

    async def _process(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        picked = Picked(self._fault)
        try:
            async for data in messages:
                for answer in picked.answers(protos.ProcessingRequest.FromString(data)):
                    yield answer.SerializeToString()
        except OrderError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _check(self, request: bytes, context: Any) -> bytes:
        return b"\x08\x01"


async def serve() -> None:
    """One picker for each fault, after one without."""
    ports = [await _start(fault) for fault in (NONE, *FAULTS)]
    sys.stdout.write(" ".join(map(str, ports)) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


_servers: list[Any] = []


async def _start(fault: str) -> int:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    server.add_generic_rpc_handlers([Service(fault)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _servers.append(server)
    return int(port)


if __name__ == "__main__":
    asyncio.run(serve())
