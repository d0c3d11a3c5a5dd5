"""The messages with which a supervisor and a router pass connections to each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.handover import (
    MAX_PAYLOAD,
    Kind,
    Message,
    MessageReader,
    connection_message,
    count_in,
    message,
    packed_count,
)

messages = st.builds(
    Message, st.sampled_from(Kind), st.integers(min_value=0, max_value=2**64 - 1), st.binary(max_size=300)
)


@given(st.lists(messages, max_size=6), st.lists(st.integers(min_value=1, max_value=400), max_size=12))
def test_messages_arrive_whole_however_the_stream_is_divided(sent: list[Message], sizes: list[int]) -> None:
    stream = b"".join(message(*one) for one in sent)
    reader, received = MessageReader(), []
    for size in sizes:
        received += reader.feed(stream[:size])
        stream = stream[size:]
    received += reader.feed(stream)
    assert received == sent


def test_too_long_payload_is_refused_by_both_sides() -> None:
    longest = message(Kind.BYTES, 1, bytes(MAX_PAYLOAD))
    assert [len(one.payload) for one in MessageReader().feed(longest)] == [MAX_PAYLOAD]
    with pytest.raises(ValueError, match="at most"):
        message(Kind.BYTES, 1, bytes(MAX_PAYLOAD + 1))
    damaged = b"\2" + bytes(8) + b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="at most"):
        list(MessageReader().feed(damaged))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        list(MessageReader().feed(b"\x63" + message(Kind.DROP, 1)[1:]))


def test_connection_names_the_bytes_that_follow() -> None:
    (one,) = MessageReader().feed(connection_message(7, 12_345))
    assert (one.kind, one.connection, count_in(one.payload)) == (Kind.CONNECTION, 7, 12_345)


@pytest.mark.parametrize("count", [None, 0, 2**64 - 1])
def test_number_may_be_unknown(count: int | None) -> None:
    assert count_in(packed_count(count)) == count


def test_something_else_is_no_number() -> None:
    with pytest.raises(ValueError, match="payload of 3 bytes"):
        count_in(b"abc")
