"""Usage is read from answers that arrive in any pieces."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_router.request.usage import JsonTail, StreamFilter, Usage, WantedUsage

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}


def _event(payload: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + end


def _token(text: str, **more: Any) -> bytes:
    return _event({"choices": [{"delta": {"content": text}}], **more})


def _feed(reader: StreamFilter | JsonTail, data: bytes, cuts: list[int]) -> bytes:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    return b"".join(map(reader.feed, pieces)) + reader.end()


CUTS = st.lists(st.integers(0, 10_000), max_size=30)


@given(CUTS, st.sampled_from(WantedUsage), st.text(max_size=20))
def test_stream_passes_in_any_pieces(cuts: list[int], wanted: WantedUsage, text: str) -> None:
    tokens = _token(text) + _token('"usage": {"prompt_tokens": 99}')
    usage, done = _event({"choices": [], "usage": USAGE}), _event(b"[DONE]")
    reader = StreamFilter(wanted)
    got = _feed(reader, b": ping\n\n: ping\n\n" + tokens + usage + done, cuts)
    assert got == tokens + (b"" if wanted is WantedUsage.NONE else usage) + done
    found = reader.usage
    assert (found.prompt_tokens, found.cached_tokens) == (7, 5)


@given(CUTS)
def test_comments_alone_pass_nothing(cuts: list[int]) -> None:
    assert _feed(StreamFilter(WantedUsage.NONE), b": a\n\n\r\n: b\r\n:\n", cuts) == b""


@given(CUTS)
def test_stream_may_use_carriage_returns(cuts: list[int]) -> None:
    token, usage = _event({"choices": [1]}, b"\r\n\r\n"), _event({"choices": [], "usage": USAGE}, b"\r\n\r\n")
    reader = StreamFilter(WantedUsage.NONE)
    assert _feed(reader, token + usage + token, cuts) == token + token
    assert reader.usage.cached_tokens == 5


@given(CUTS, st.sampled_from(WantedUsage), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_usage_beside_token_is_read_and_kept_if_wanted(cuts: list[int], wanted: WantedUsage, end: bytes) -> None:
    choices = [{"delta": {"content": 'a "usage": {} b'}}]
    beside = b"id: 1" + end[: len(end) // 2] + _event({"choices": choices, "usage": USAGE}, end)
    last = _event({"choices": [], "usage": USAGE}, end)
    reader = StreamFilter(wanted)
    got = _feed(reader, beside + last + _event(b"[DONE]", end), cuts)
    events = [json.loads(line[5:]) for line in got.splitlines() if line.startswith(b"data: {")]
    assert events[0]["choices"] == choices
    assert got.startswith(b"id: 1")
    assert [event.get("usage") for event in events] == {
        WantedUsage.NONE: [None], WantedUsage.LAST: [None, USAGE], WantedUsage.EVERY: [USAGE, USAGE],
    }[wanted]  # fmt: skip
    assert reader.usage.prompt_tokens == 7


def test_null_usage_is_ignored() -> None:
    reader = StreamFilter(WantedUsage.NONE)
    event = _token("x", usage=None)
    assert reader.feed(event) == event
    assert reader.usage.prompt_tokens is None


def test_endless_event_is_not_buffered() -> None:
    reader = StreamFilter(WantedUsage.NONE)
    passed = sum(len(reader.feed(b"data: " + b"x" * 65536)) for _ in range(64))
    assert passed > 2 << 20


def test_stream_may_end_inside_event() -> None:
    reader = StreamFilter(WantedUsage.NONE)
    assert reader.feed(b"data: {") + reader.end() == b"data: {"


@given(CUTS)
def test_json_answer_passes_and_is_read(cuts: list[int]) -> None:
    answer = {"choices": [{"message": {"content": '"usage": {"cached_tokens": 99}' * 300}}], "usage": USAGE}
    body = json.dumps(answer).encode()
    reader = JsonTail()
    assert _feed(reader, body, cuts) == body
    assert (reader.usage.prompt_tokens, reader.usage.cached_tokens) == (7, 5)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"usage":null}', b"not json"])
def test_answer_may_lack_usage(body: bytes) -> None:
    reader = JsonTail()
    assert reader.feed(body) + reader.end() == body
    assert reader.usage.cached_tokens is None


def test_input_of_a_tool_is_not_usage_of_an_anthropic_answer() -> None:
    tail = JsonTail()
    tail.feed(
        b'{"content":[{"type":"tool_use","input":{"cache_read_input_tokens":900,"input_tokens":7}}],'
        b'"usage":{"input_tokens":10,"output_tokens":3}}'
    )
    tail.end()
    assert (tail.usage.prompt_tokens, tail.usage.cached_tokens, tail.usage.output_tokens) == (10, None, 3)


def test_anthropic_usage_counts_the_whole_prompt() -> None:
    tail = JsonTail()
    tail.feed(b'{"usage": {"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 64}}')
    tail.end()
    assert (tail.usage.prompt_tokens, tail.usage.cached_tokens, tail.usage.output_tokens) == (74, 64, 3)


RESPONSE_EVENTS = [
    b'event: response.created\ndata: {"response":{"tools":[{"usage":{}}],"usage":null}}\n\n',
    b'event: response.in_progress\ndata: {"response":{"usage":null}}\n\n',
    b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n',
    b'event: response.completed\ndata: {"response":{"tools":[{"usage":{"input_tokens":1}}],"usage":{"input_tokens":9,'
    b'"input_tokens_details":{"cached_tokens":4,"input_tokens_per_turn":[]},"output_tokens":2},"more":{"usage":1}}}\n\n',
]


@pytest.mark.parametrize("size", [1, 7, 60, 10_000])
def test_responses_stream_begins_with_its_first_token_and_is_not_changed(size: int) -> None:
    stream = b"".join(RESPONSE_EVENTS)
    reader = StreamFilter(WantedUsage.EVERY, named=True)
    early = len(RESPONSE_EVENTS[0] + RESPONSE_EVENTS[1])
    passed = [reader.feed(stream[at : at + size]) for at in range(0, early - early % size, size)]
    assert not any(passed)
    rest = [reader.feed(stream[at : at + size]) for at in range(early - early % size, len(stream), size)]
    assert b"".join(rest) + reader.end() == stream
    assert reader.usage == Usage(prompt_tokens=9, cached_tokens=4, output_tokens=2)


def test_whole_response_has_usage() -> None:
    reader = JsonTail()
    reader.feed(RESPONSE_EVENTS[3].partition(b"data: ")[2])
    reader.end()
    assert reader.usage == Usage(prompt_tokens=9, cached_tokens=4, output_tokens=2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(['"prompt_tokens":', '"prompt_tokens" : ', '"prompt_tokens"', '"cached_tokens":']),
            st.sampled_from(["0", "17", "123456789", "1234567890", "-1", "null", "", "1.5"]),
            st.sampled_from([",", "}", ""]),
        ),
        max_size=4,
    )
)
def test_number_is_what_the_pattern_finds(fields: list[tuple[str, str, str]]) -> None:
    """The last one that is a number, and of a long one the first nine digits."""
    data = "".join(map("".join, fields)).encode()
    usage = Usage()
    usage.read(data)
    found = re.findall(rb'"prompt_tokens"\s*:\s*(\d{1,9})', data)
    assert usage.prompt_tokens == (int(found[-1]) if found else None)
