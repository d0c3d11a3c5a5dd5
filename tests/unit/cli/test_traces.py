"""Traces: fetched by checksum, converted, described."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from plumage_cli.commands import trace
from plumage_cli.errors import CliError
from plumage_cli.traces.convert import convert
from plumage_cli.traces.describe import describe
from plumage_cli.traces.fetch import fetch
from plumage_cli.traces.record import Request, read_mooncake, write_mooncake

CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT by ranges, and breaks the first `breaks` connections halfway."""

    breaks = 0
    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        Server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if self.path == "/missing":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        body = CONTENT[start:]
        if Server.breaks > 0:
            Server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    Server.breaks, Server.ranges = 0, []
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def get(url: str, target: Path, digest: str = DIGEST, limit: int = 10_000_000) -> None:
    fetch(url, target, digest, max_bytes=limit, progress=lambda have, total: None)


def test_file_with_the_right_checksum_is_accepted(url: str, tmp_path: Path) -> None:
    target = tmp_path / "trace"
    get(f"{url}/trace", target, DIGEST.upper())
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


def test_broken_download_continues_where_it_broke(url: str, tmp_path: Path) -> None:
    Server.breaks = 2
    get(f"{url}/trace", tmp_path / "trace")
    assert (tmp_path / "trace").read_bytes() == CONTENT
    assert Server.ranges == [None, "bytes=512000-", "bytes=768000-"]


def test_partial_download_is_used_by_the_next_call(url: str, tmp_path: Path) -> None:
    Server.breaks = 99
    with pytest.raises(CliError, match="the same command continues from there"):
        get(f"{url}/trace", tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
    Server.breaks = 0
    get(f"{url}/trace", tmp_path / "trace")
    assert (tmp_path / "trace").read_bytes() == CONTENT


def test_wrong_checksum_is_refused_and_nothing_kept(url: str, tmp_path: Path) -> None:
    with pytest.raises(CliError, match=f"has the SHA-256 {DIGEST}"):
        get(f"{url}/trace", tmp_path / "trace", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_size_bounds_and_bad_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="more than the 1,000 allowed"):
        get(f"{url}/trace", tmp_path / "trace", limit=1000)
    with pytest.raises(CliError, match="the server answered 404"):
        get(f"{url}/missing", tmp_path / "trace")
    with pytest.raises(CliError, match="must begin with https:// or http://"):
        get("file:///etc/passwd", tmp_path / "trace")
    with pytest.raises(CliError, match="can't fetch"):
        get("http://127.0.0.1:1/trace", tmp_path / "trace")


def test_mooncake_trace_reads_back_as_written(tmp_path: Path) -> None:
    requests = [Request(0, 1000, 5, (1, 2)), Request(10, 600, 5, (1, 3))]
    path = tmp_path / "trace.jsonl"
    assert write_mooncake(path, requests) == 2
    assert list(read_mooncake(path)) == requests


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"timestamp": 1}', '{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []}']
)
def test_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}'
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(CliError, match=r"trace\.jsonl line 3"):
        list(read_mooncake(path))


@pytest.mark.parametrize(("tokens", "ids", "due"), [(10, 5, 1), (512, 2, 1), (513, 1, 2), (1, 0, 1), (0, 1, 0)])
def test_wrong_number_of_ids_is_named(tmp_path: Path, tokens: int, ids: int, due: int) -> None:
    path = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": tokens, "output_length": 1, "hash_ids": list(range(ids))}
    path.write_text(f"{LINE}{json.dumps(request)}\n")
    done = CliRunner().invoke(trace.app, ["describe", str(path)])
    message = f"line 2: hash_ids must have {due} ids, one for each 512 of {tokens} tokens, got {ids}"
    assert message in str(done.exception)
    assert done.output == ""


def test_azure_has_times_and_lengths_and_shares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,1396,109\n"
    )
    first, second = convert(path, "azure")
    assert (first.timestamp, second.timestamp) == (0, 4314)
    assert (first.input_length, first.output_length, len(first.hash_ids)) == (374, 44, 1)
    assert len({*first.hash_ids, *second.hash_ids}) == 4
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n")
    assert [request.timestamp for request in convert(path, "azure")] == [0]


def test_burstgpt_leaves_out_failures(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(
        header + "5,ChatGPT,472,18,490,Conversation log\n6,GPT-4,100,0,100,Conversation log\n7,GPT-4,9,1,10,API log\n"
    )
    assert [(request.timestamp, request.input_length) for request in convert(path, "burstgpt")] == [(0, 472), (2000, 9)]


def test_bailian_keeps_equal_prefixes_equal(tmp_path: Path) -> None:
    shared = list(range(32))
    rows = [[*shared, 100], [*shared, 200, 201], [*range(500, 532), 100], shared]
    lines = [
        json.dumps({"timestamp": 60.5 + at, "input_length": 16 * len(ids), "output_length": 3, "hash_ids": ids})
        for at, ids in enumerate(rows)
    ]
    path = tmp_path / "bailian.jsonl"
    path.write_text("\n".join(lines))
    one, two, other, prefix = convert(path, "bailian")
    assert one.hash_ids[0] == two.hash_ids[0] == prefix.hash_ids[0]
    assert one.hash_ids[1] != two.hash_ids[1]
    assert set(one.hash_ids).isdisjoint(other.hash_ids)
    assert [request.timestamp for request in (one, two, other, prefix)] == [0, 1000, 2000, 3000]


def test_trace_out_of_order_or_in_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n9,1,1\n5,1,1\n")
    with pytest.raises(CliError, match="request 2 has an earlier time"):
        list(convert(path, "burstgpt"))
    with pytest.raises(CliError, match="there is no column 'TIMESTAMP'"):
        list(convert(path, "azure"))


LINE = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n'


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("azure", LINE, "line 1: there is no column 'TIMESTAMP'; is it another format?"),
        ("azure", "TIMESTAMP,ContextTokens\n", "line 1: there is no column 'GeneratedTokens'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "contains no request in the format azure"),
        ("burstgpt", LINE, "line 1: there is no column 'Timestamp'"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\n1,9,0\n", "contains no request in the format burstgpt"),
        ("bailian", "\n\n", "contains no request in the format bailian"),
        ("mooncake", "", "contains no request in the format mooncake; is it the right file"),
    ],
)
def test_wrong_file_does_not_become_an_empty_trace(tmp_path: Path, form: str, text: str, message: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(text)
    target.write_text("of before")
    done = CliRunner().invoke(trace.app, ["convert", str(source), str(target), "--from", form])
    assert message in str(done.exception)
    assert done.output == ""
    assert target.read_text() == "of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_trace_without_requests_is_not_described(tmp_path: Path) -> None:
    done = CliRunner().invoke(trace.app, ["describe", "/dev/null"])
    assert "/dev/null contains no request; is it the right file?" in str(done.exception)
    assert done.output == ""
    (tmp_path / "trace").write_text(LINE)
    done = CliRunner().invoke(trace.app, ["describe", str(tmp_path / "trace")])
    assert done.exit_code == 0
    assert "block hit ratio" in done.output


def test_trace_is_described() -> None:
    found = describe([Request(1000, 1024, 10, (1, 2)), Request(3000, 1500, 20, (1, 2, 3)), Request(5000, 100, 1, (9,))])
    rows = dict(found.rows())
    assert rows["requests"] == "3"
    assert rows["duration"] == "4 s"
    assert rows["blocks of 512 tokens: accesses, distinct"] == "6, 4"
    assert rows["block hit ratio of an unlimited cache"] == "33.3%"
    assert rows["prompt tokens in prefixes seen before"] == f"{1024 / 2624:.1%}"
    assert dict(describe([]).rows())["requests a second"] == "–"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,-5,1\n"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,999999999999999,1\n"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,5\n"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\ninf,1,1\n"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\nnan,1,1\n"),
        ("bailian", '{"timestamp": 1e400, "input_length": 1, "output_length": 1, "hash_ids": [1]}'),
        ("bailian", '{"timestamp": 1, "input_length": -1, "output_length": 1, "hash_ids": [1]}'),
        ("mooncake", '{"timestamp": Infinity, "input_length": 1, "output_length": 1, "hash_ids": [1]}'),
        ("mooncake", "[" * 200_000),
    ],
)
def test_invalid_values_are_refused_with_their_line(tmp_path: Path, form: str, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(CliError, match=r"trace line \d"):
        list(convert(path, form))


def test_only_a_regular_file_is_replaced(url: str, tmp_path: Path) -> None:
    """A device or a pipe that is given as a target must still be one afterwards."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, tmp_path, Path("/")):
        with pytest.raises(CliError, match="it exists and is not a file; choose another name"):
            write_mooncake(target, [])
        with pytest.raises(CliError, match="it exists and is not a file; choose another name"):
            fetch(url, target, DIGEST, max_bytes=10**9, progress=lambda *_: None)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("address", ["http://[::1/x", "http://a b/x", "http://127.0.0.1:x/", "http://127.0.0.1:9/é"])
def test_invalid_address_is_tried_once(tmp_path: Path, address: str) -> None:
    with pytest.raises(CliError, match="it is not an address"):
        fetch(address, tmp_path / "file", DIGEST, max_bytes=10, progress=lambda *_: None)


def test_fetched_file_is_named_after_its_address(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(trace.app, ["fetch", f"{url}/a/b.jsonl?raw=1", "--sha256", DIGEST])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b.jsonl").read_bytes() == CONTENT
