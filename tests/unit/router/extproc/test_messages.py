"""What the picker reads and writes, beside protobuf's own classes of the same messages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from support.ext_proc import ext_proc

from plumage_router.extproc.messages import (
    DESTINATION,
    Phase,
    body_answer,
    header_answer,
    immediate,
    read,
    trailer_answer,
)

protos = ext_proc()
TOKENS = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(TOKENS, st.binary(max_size=300)), max_size=12)
HEADER_PHASES = (Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS)
BODY_PHASES = (Phase.REQUEST_BODY, Phase.RESPONSE_BODY)
TRAILER_PHASES = (Phase.REQUEST_TRAILERS, Phase.RESPONSE_TRAILERS)


def parsed(answer: bytes) -> Any:
    return protos.ProcessingResponse.FromString(answer)


@given(st.sampled_from(HEADER_PHASES), PAIRS, st.booleans(), st.booleans())
def test_headers_are_read(phase: Phase, pairs: list[tuple[str, bytes]], end: bool, plain: bool) -> None:
    message = protos.ProcessingRequest()
    part = getattr(message, phase.name.lower())
    part.end_of_stream = end
    part.SetInParent()
    for name, value in pairs:
        header = part.headers.headers.add(key=name)
        if plain:
            header.value = value.hex()
        else:
            header.raw_value = value
    found = read(message.SerializeToString())
    wanted = [(name.encode(), value.hex().encode() if plain else value) for name, value in pairs]
    assert (found.phase, list(found.headers), found.end) == (phase, wanted, end)
    assert (found.subset, found.served, found.modes, found.watched) == (None, "", None, False)


@given(st.sampled_from(BODY_PHASES), st.binary(max_size=2000), st.booleans())
def test_bodies_are_read(phase: Phase, body: bytes, end: bool) -> None:
    message = protos.ProcessingRequest()
    part = getattr(message, phase.name.lower())
    part.body, part.end_of_stream = body, end
    part.SetInParent()
    found = read(message.SerializeToString())
    assert (found.phase, found.body, found.end) == (phase, body, end)


@pytest.mark.parametrize("phase", TRAILER_PHASES)
def test_trailers_end_their_side(phase: Phase) -> None:
    message = protos.ProcessingRequest()
    getattr(message, phase.name.lower()).trailers.headers.add(key="x-sum", raw_value=b"1")
    found = read(message.SerializeToString())
    assert (found.phase, list(found.headers), found.end) == (phase, [(b"x-sum", b"1")], True)


@pytest.mark.parametrize("as_list", [True, False])
def test_metadata_and_modes_are_read(as_list: bool) -> None:
    message = protos.ProcessingRequest(observability_mode=True)
    message.request_headers.SetInParent()
    endpoints = ["10.0.0.1:8000", "[fd00::1]:8000"]
    known = message.metadata_context.filter_metadata
    known["envoy.lb.subset_hint"]["x-gateway-destination-endpoint-subset"] = (
        endpoints if as_list else ", ".join(endpoints)
    )
    known["envoy.lb"]["x-gateway-destination-endpoint-served"] = endpoints[0]
    known["envoy.lb"]["other"] = 3.0
    known["another.filter"]["x"] = True
    message.attributes["envoy.filters.http.ext_proc"]["request.path"] = "/"
    message.protocol_config.request_body_mode = 4
    message.protocol_config.response_body_mode = 1
    found = read(message.SerializeToString())
    assert (found.subset, found.served, found.modes, found.watched) == (tuple(endpoints), endpoints[0], (4, 1), True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        read(data)


def test_unknown_phases_are_not_taken_for_others() -> None:
    assert read(b"\x9a\x06\x03abc").phase is None  # field 99


@given(st.sampled_from(HEADER_PHASES), PAIRS, st.lists(TOKENS, max_size=3), st.sampled_from([b"", b"10.0.0.1:80"]))
def test_header_answers_are_as_protobuf_reads_them(
    phase: Phase, pairs: list[tuple[str, bytes]], removed: list[str], destination: bytes
) -> None:
    answer = parsed(
        header_answer(
            phase, [(name.encode(), value) for name, value in pairs], [name.encode() for name in removed], destination
        )
    )
    assert answer.WhichOneof("response") == phase.name.lower()
    common = getattr(answer, phase.name.lower()).response
    mutation = common.header_mutation
    wanted = [(name, value) for name, value in pairs]
    if destination:
        wanted.append((DESTINATION.decode(), destination))
    assert [(one.header.key, one.header.raw_value) for one in mutation.set_headers] == wanted
    assert all(one.append_action == 2 for one in mutation.set_headers)
    assert list(mutation.remove_headers) == removed
    metadata = {"envoy.lb": {DESTINATION.decode(): destination.decode()}} if destination else {}
    assert MessageToDict(answer.dynamic_metadata) == metadata
    assert common.clear_route_cache == bool(destination)


@given(st.sampled_from(BODY_PHASES), st.integers(0, 200_000), st.booleans())
def test_bodies_are_sent_in_pieces(phase: Phase, size: int, end: bool) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    answers = [parsed(answer) for answer in body_answer(phase, body, end=end)]
    pieces = [getattr(one, phase.name.lower()).response.body_mutation.streamed_response for one in answers]
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [end]
    assert all(len(piece.body) <= 65_536 for piece in pieces)


def test_whole_body_takes_headers_and_destination_with_it() -> None:
    (data,) = body_answer(
        Phase.REQUEST_BODY, b"{}", end=True, headers=[(b"a", b"b")], destination=b"10.0.0.1:80", whole=True
    )
    answer = parsed(data)
    common = answer.request_body.response
    assert common.body_mutation.body == b"{}"
    assert [one.header.key for one in common.header_mutation.set_headers] == ["a", DESTINATION.decode()]
    assert "envoy.lb" in answer.dynamic_metadata


def test_trailers_and_immediate_answers() -> None:
    assert parsed(trailer_answer(Phase.RESPONSE_TRAILERS)).WhichOneof("response") == "response_trailers"
    answer = parsed(immediate(429, [(b"retry-after", b"3")], b"{}", "queue_full")).immediate_response
    assert (answer.status.code, answer.body, answer.details) == (429, b"{}", "queue_full")
    assert [(one.header.key, one.header.raw_value) for one in answer.headers.set_headers] == [("retry-after", b"3")]


def field(number: int, content: bytes) -> bytes:
    size, parts = len(content), bytearray()
    while size >= 0x80:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *parts, size)) + content


def subset(value: bytes) -> bytes:
    """A message whose metadata has this Value as the subset hint."""
    struct = field(1, field(1, b"x-gateway-destination-endpoint-subset") + field(2, value))
    return field(8, field(1, field(1, b"envoy.lb.subset_hint") + field(2, struct)))


def test_lists_in_lists_are_not_followed() -> None:
    """Their depth has no bound."""
    value = field(3, b"10.0.0.1:80")
    assert read(subset(field(6, field(1, value)))).subset == ("10.0.0.1:80",)
    for _ in range(2_000):
        value = field(6, field(1, value))
    assert read(subset(value)).subset == ()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0\x0c\x01" * 5_000,
        field(2, field(1, field(1, field(1, b"x")) * 5_000)),
        subset(field(6, field(1, field(3, b"10.0.0.1:80")) * 5_000)),
        subset(field(3, b"10.0.0.1:80," * 5_000)),
    ],
    ids=["unknown", "headers", "list", "text"],
)
def test_messages_of_many_fields_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="too many"):
        read(data)
