"""`quality`: its texts, its load, and its arithmetic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage_bench.benches import quality
from plumage_bench.benches.quality.cases import CASES
from plumage_bench.benches.quality.load import Sent, play
from plumage_bench.benches.quality.report import OURS, ROUND_ROBIN, Found, Served, make_report, ranks, sum_up
from plumage_bench.benches.quality.texts import MODEL_FOLDER, Texts
from plumage_bench.harness import Context, wide_console
from plumage_bench.workloads import ClosedLoop, OpenLoop, Prompt
from plumage_engine.simulator.model.text import Text


def served(p95: float, *, late: float = 0.0, failed: int = 0) -> Served:
    return Served(p95 / 2, p95, p95 / 2, 5.0, 0.5, late, 0.3, 0.1, 100, failed)


def test_each_word_is_a_token_and_equal_names_are_equal_texts() -> None:
    texts = Texts(16)
    text = Text(ModelFolder.load(resolve(MODEL_FOLDER)).tokenizer_json)
    (alone,) = texts.messages(Prompt(100, range(70, 76), 1, 0))
    assert len(text.encode(alone, add_special_tokens=False)) == 100
    prefix, own = texts.messages(Prompt(100, (70, 71, 500, 501, 502, 503), 1, 0))
    assert alone.startswith(prefix)
    assert not alone.startswith(prefix + own[:20])
    assert Texts(16).messages(Prompt(100, range(70, 76), 1, 0)) == [alone]


def test_next_round_of_a_conversation_begins_with_the_last() -> None:
    texts = Texts(16, message_blocks=4)
    first = texts.messages(Prompt(64, range(4), 1, 0))
    third = texts.messages(Prompt(200, range(12), 1, 0))
    assert len(first) == 1
    assert len(third) == 3
    assert third[0] == first[0]
    body = json.loads(texts.body(Prompt(64, range(4), 7, 0)))
    assert body["messages"] == [{"role": "user", "content": first[0]}]
    assert body["max_tokens"] == 7


def test_prompt_shorter_than_a_block_has_its_text() -> None:
    assert Texts(16).messages(Prompt(3, (), 1, 0))[0].count(" ") == 3


@pytest.mark.parametrize("name", CASES)
def test_every_case_repeats_by_its_seed_and_has_its_rate(name: str) -> None:
    case = CASES[name]
    arrivals, again, other = (list(case.arrivals(seed).initial()) for seed in (1, 1, 2))
    assert arrivals == again
    assert arrivals != other
    assert (len(arrivals) - 1) / arrivals[-1].at == pytest.approx(case.rate, rel=0.25)
    longest = max(one.prompt.tokens for one in arrivals)
    assert longest < case.cache_tokens / 2  # else a request could not run beside another


def test_first_fifth_does_not_count_and_a_failed_request_counts_as_the_limit() -> None:
    sent = [Sent(float(n), 0.0, 9.0, 9.5, prompt=100, cached=0) for n in range(2)]
    sent += [Sent(2.0 + n, 0.01 * n, 0.5, 1.0, prompt=100, cached=50) for n in range(7)]
    sent.append(Sent(9.0, failed="HTTP 503: no"))
    found = sum_up(sent, 60.0, cpu=0.25, router_cores=0.1)
    assert (found.requests, found.failed, found.why) == (8, 1, "HTTP 503: no")
    assert found.p50 == 0.5
    assert found.p95 == 60.0
    assert found.mean == pytest.approx((7 * 0.5 + 60.0) / 8)
    assert found.rate == pytest.approx(7 / 7.0)  # from 2.0, when the first is due, to the last answer at 9.0
    assert found.hits == 0.5
    assert found.late == pytest.approx(0.06)
    assert (found.cpu, found.router_cores) == (0.25, 0.1)


def test_run_is_late_by_its_own_p95() -> None:
    assert served(1.0, late=0.11).is_late
    assert not served(1.0, late=0.09).is_late


def compared() -> Found:
    found: Found = {}
    for pair, (ours, one, other) in enumerate([(1.0, 2.0, 1.0), (2.0, 2.0, 8.0)]):
        found |= {("a", OURS, pair): served(ours), ("a", "one", pair): served(one), ("a", "other", pair): served(other)}
        found |= {("b", OURS, pair): served(2.0), ("b", "one", pair): served(1.0, failed=3)}
    return found | {("a", ROUND_ROBIN, 0): served(0.1, late=1.0)}


def test_best_peer_has_the_least_geometric_mean_and_round_robin_is_none() -> None:
    best, ratio = ranks(compared(), "a")
    assert best == "one"
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((2**0.5, 1.0, 2.0))


def test_least_rank_of_the_workloads_counts() -> None:
    report = make_report(compared(), ("a", "b"), ["gone 1.0"], real_time=False)
    assert report.keys["rank_min"] == report.keys["rank_b"] == 0.5
    assert report.keys["rank_a_high"] == pytest.approx(2.0)
    assert report.keys["rank_min_pairs"] == 2
    assert (report.keys["failed"], report.keys["peers_failed"], report.keys["late_runs"]) == (0, 6, 1)
    table = report.tables[1]
    assert [row[0] for row in table.rows] == [ROUND_ROBIN, OURS, "one", "other"]
    assert "Not installed: gone 1.0" in table.notes
    assert "ordinary priority" in table.notes
    assert len(report.data["runs"]) == len(compared())


def test_each_pair_begins_with_another_and_round_robin_may_be_left_out() -> None:
    names = [OURS, "one", "two", ROUND_ROBIN]
    assert quality._order(names, 0, floor=True) == names
    assert quality._order(names, 1, floor=False) == ["one", "two", OURS]
    assert quality._order(names, 3, floor=False) == [OURS, "one", "two"]


def test_without_peers_the_error_names_the_remedy(tmp_path: Path) -> None:
    context = Context("quality", True, 1, tmp_path, wide_console(), {"peers": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="make setup-peers"):
        quality.run(context)


Answer = Callable[[asyncio.StreamWriter, dict[str, int]], None]
USAGE = b'data: {"usage": {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 32}}}\n\ndata: [DONE]\n\n'


def whole(writer: asyncio.StreamWriter, _: dict[str, int]) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(USAGE) + USAGE)


def refused(writer: asyncio.StreamWriter, _: dict[str, int]) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")


def cut(writer: asyncio.StreamWriter, _: dict[str, int]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: {\r\n")


def silent(_: asyncio.StreamWriter, seen: dict[str, int]) -> None:
    seen["silent"] = 1


def played(answer: Answer, source: OpenLoop | ClosedLoop, limit: float = 1000.0) -> tuple[list[Sent], int]:
    """What became of the requests, and how many there were."""
    seen: dict[str, int] = {"requests": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        seen["requests"] += 1
        answer(writer, seen)
        if "silent" in seen:
            await reader.read()  # until the client leaves
        writer.close()

    async def both() -> list[Sent]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await play(port, source, 0.01, lambda prompt: b"{}", limit)

    return asyncio.run(both()), seen["requests"]


PROMPTS = [Prompt(16, (n,), 1, n) for n in range(5)]


def test_load_sends_each_request_and_reads_the_engines_counts() -> None:
    sent, requests = played(whole, OpenLoop(PROMPTS, 2.0, 1))
    assert requests == len(sent) == 5
    assert [one.due for one in sent] == [arrival.at for arrival in OpenLoop(PROMPTS, 2.0, 1).initial()]
    assert all((one.prompt, one.cached, one.failed) == (90, 32, "") for one in sent)
    assert all(one.ttft is not None and one.ended is not None and 0.0 < one.ttft <= one.ended for one in sent)


def test_next_round_follows_the_answer() -> None:
    sent, requests = played(whole, ClosedLoop([PROMPTS[:3], PROMPTS[3:]], 2.0, 1, at_once=1))
    assert requests == 5
    ends = [one.due + (one.ended or 0.0) for one in sent]
    assert all(after.due >= end for end, after in zip(ends, sent[1:], strict=False))


@pytest.mark.parametrize(
    ("answer", "limit", "why"),
    [
        (refused, 1000.0, "HTTP 503: busy"),
        (cut, 1000.0, "the connection broke"),
        (silent, 2.0, "no complete answer within 2 modelled seconds"),
    ],
)
def test_incomplete_answer_is_a_failure_with_its_cause(answer: Answer, limit: float, why: str) -> None:
    sent, _ = played(answer, OpenLoop(PROMPTS[:1], 2.0, 1), limit)
    assert [one.failed for one in sent] == [why]
