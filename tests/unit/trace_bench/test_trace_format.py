"""Reading a Mooncake-format trace: what is kept, and each bad line named by its number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.benches.trace.mooncake import BLOCK, TracedRequest, load, parse


def line(**changes: Any) -> bytes:
    record = {"timestamp": 1500, "input_length": 1025, "output_length": 7, "hash_ids": [3, 4, 9]} | changes
    return json.dumps({name: value for name, value in record.items() if value is not None}).encode()


def test_line_is_read_unchanged() -> None:
    assert parse([line()], "t") == [TracedRequest(1.5, 1025, 7, (3, 4, 9))]


def test_partial_block_is_no_full_block() -> None:
    partial, whole = parse([line(), line(input_length=3 * BLOCK)], "t")
    assert partial.full_blocks == (3, 4)
    assert whole.full_blocks == (3, 4, 9)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "must be a JSON object, got list"),
        (line(hash_ids=None), "misses hash_ids"),
        (line(timestamp="soon"), "timestamp must be milliseconds"),
        (line(timestamp=-1), "timestamp must be milliseconds"),
        (line(timestamp=float("nan")), "timestamp must be milliseconds"),
        (line(input_length=0), "input_length must be a whole number from 1"),
        (line(output_length=1.5), "output_length must be a whole number from 0"),
        (line(output_length=True), "output_length must be a whole number from 0"),
        (line(hash_ids=[1, 2]), "hash_ids must have 3 ids, one for each 512 of 1025 tokens, got 2"),
        (line(hash_ids=[1, 2, -3]), "hash_ids must be a list of whole numbers"),
        (line(hash_ids="1,2,3"), "hash_ids must be a list of whole numbers"),
        (line(timestamp=1499), "timestamp 1499 is before the last, 1500"),
        (line(hash_ids=[5, 4, 9]), "id 4 follows 5 here and 3 earlier"),
        (line(hash_ids=[7, 7, 8]), "id 7 follows 7 here and None earlier"),
    ],
)
def test_bad_line_is_named(bad: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse([line(), b"", bad, line()], "mine.jsonl")
    assert "mine.jsonl: 1 bad line" in str(error.value)
    assert f"line 3: {message}" in str(error.value)


def test_bad_lines_are_reported_together_up_to_a_bound() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse([b"{"] * 1000, "t")
    assert "1,000 bad lines" in str(error.value)
    assert "line 10:" in str(error.value)
    assert "line 11:" not in str(error.value)
    assert "990 more" in str(error.value)


def test_empty_or_missing_trace_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="no requests"):
        parse([b"\n"], "t")
    with pytest.raises(ConfigurationError, match=r"can't read the trace .*gone\.jsonl: No such file"):
        load(tmp_path / "gone.jsonl")
