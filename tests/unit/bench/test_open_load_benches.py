"""`overload`, `fairness` and `sloscore`: their manifests, and how answers become figures."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from plumage.api.v1alpha1 import InferencePool
from plumage_bench.benches import fairness, overload, sloscore
from plumage_bench.open_load import Answer, Tenant, _body, play


@pytest.mark.parametrize(
    "spec",
    [
        *(overload.spec(policy, 12.3) for policy in overload.POLICIES),
        *(fairness.spec(queue=queue) for queue in (False, True)),
        *(sloscore.spec(order) for order in sloscore.ORDERS),
    ],
)
def test_specs_are_manifests(spec: dict[str, Any]) -> None:
    InferencePool.model_validate(
        {
            "apiVersion": "inference.plumage.dev/v1alpha1",
            "kind": "InferencePool",
            "metadata": {"name": "a"},
            "spec": spec,
        }
    )


def test_limit_is_what_the_pool_serves_within_the_objective() -> None:
    assert overload.spec("limit", 12.3)["router"]["limits"] == {"maxInFlight": round(12.3 * overload.OBJECTIVE)}


def test_good_requests_are_complete_and_in_time() -> None:
    in_time, late = overload.OBJECTIVE - 0.1, overload.OBJECTIVE + 0.1
    answers = [
        Answer("all", 1.0, 200, 1.0 + in_time, 9.0, answered=5),  # sent before the window
        Answer("all", 2.0, 200, 2.0 + in_time, 9.0, answered=5),
        Answer("all", 3.0, 200, 3.0 + late, 9.0, answered=5),
        Answer("all", 3.5, 200, 3.5 + in_time, 9.0),  # broken off
        Answer("all", 3.6, 429, None, 4.0),
        Answer("all", 3.7),
        Answer("all", 4.0, 200, 4.0 + in_time, 9.0, answered=5),  # sent after the window
    ]
    cell = overload.summary("queue", 3.0, answers, overload.Window(2.0, 4.0))
    assert (cell.good, cell.answered) == (0.5, 1.0)
    assert cell.ttft_p95 == pytest.approx(late)
    assert cell.statuses == {"200": 3, "429": 1, "None": 1}


def test_service_is_what_was_computed_and_twice_what_was_answered() -> None:
    answers = [
        Answer("many", 0.0, 200, 1.0, 2.0, prompt=100, cached=40, answered=20),
        Answer("long", 0.0, 200, 1.0, 2.5, prompt=70, cached=0, answered=5),
        Answer("few", 1.5, 200, 1.8, 1.9, prompt=10, cached=0, answered=5),
        Answer("batch", 0.0, 200, 1.0, 2.0, prompt=40, cached=0, answered=5),
        Answer("batch", 0.0, 200, 3.5, 9.0, prompt=4000, cached=0, answered=5),  # served after the window
        Answer("batch", 0.0, 429, None, 2.0),
    ]
    window = fairness.window(answers, 1.0, 3.0)
    assert window.service == {"many": 50.0, "long": 40.0, "few": 10.0, "batch": 25.0}
    assert window.service_gap == pytest.approx(10 / 45)
    assert window.weight_gap == pytest.approx(0.0)
    assert window.ttft_p95["few"] == pytest.approx(0.3)
    assert window.ttft_p95["many"] is None, "it sent nothing in the window"


@pytest.mark.parametrize(
    ("first", "ended", "tokens"),
    [
        (11.0, 12.0, 60.0),
        (9.0, 11.0, 10.0),  # the prompt and half of the answer before the window
        (19.0, 21.0, 50.0),
        (5.0, 25.0, 10.0),
        (10.0, 20.0, 60.0),
        (20.0, 21.0, 0.0),
        (15.0, 15.0, 60.0),
        (15.0, None, 0.0),
        (None, None, 0.0),
    ],
)
def test_service_counts_when_it_is_given(first: float | None, ended: float | None, tokens: float) -> None:
    """40 computed tokens of a prompt, and ten tokens of an answer, which cost as much as 20."""
    answers = [Answer("many", 0.0, 200, first, ended, prompt=100, cached=60, answered=10)]
    assert fairness.window(answers, 10.0, 20.0).service["many"] == pytest.approx(tokens / 10.0)


def test_answers_that_began_in_the_window_and_have_no_end_are_counted() -> None:
    times = [(9.0, None), (10.0, None), (15.0, 16.0), (19.0, None), (20.0, None), (None, None)]
    answers = [Answer("many", 1.0, 200, first, ended) for first, ended in times]
    assert fairness.window(answers, 10.0, 20.0).unended == 2


def test_pools_by_score_and_by_arrival_differ_in_the_order_alone() -> None:
    by_arrival, by_score = map(sloscore.spec, sloscore.ORDERS)
    assert by_score["flowControl"].pop("order") == "SloScore" != by_arrival["flowControl"].pop("order")
    assert by_arrival == by_score


def test_prompts_begin_with_one_of_the_documents() -> None:
    rng, tenant = random.Random(1), Tenant("a", 1.0, (5, 9), (1, 9), documents=3, document_words=50)
    texts = [_body(rng, tenant)["messages"][0]["content"].partition("\n") for _ in range(100)]
    assert len({document for document, _, _ in texts}) == 3
    assert {len(document.split()) for document, _, _ in texts} == {50}
    assert len({question for _, _, question in texts}) == 100


def test_cell_counts_requests_in_time_and_cached_tokens() -> None:
    late = sloscore.OBJECTIVE + 0.1
    answers = [
        Answer("all", 2.0, 200, 2.5, 9.0, prompt=100, cached=80, answered=5),
        Answer("all", 3.0, 200, 3.0 + late, 9.0, prompt=100, cached=0, answered=5),
        Answer("all", 3.5, 429, None, 3.6),
        Answer("all", 9.0, 200, 9.1, 9.5, prompt=100, cached=100, answered=5),  # sent after the window
    ]
    cell = sloscore.summary("SloScore", 2.5, answers, overload.Window(2.0, 4.0))
    assert (cell.good, cell.answered, cell.hits) == (0.5, 1.0, 0.4)
    assert cell.ttft_p99 == pytest.approx(late)
    assert cell.statuses == {"200": 2, "429": 1}


async def test_load_is_repeated_by_its_seed_and_gives_up_what_never_ends() -> None:
    bodies: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = json.loads(await reader.readexactly(size))
        bodies.append(body)
        assert b"x-tenant: a" in head
        if body["max_tokens"] % 3 == 0:  # never ends
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            await reader.read()
        elif body["max_tokens"] % 3 == 1:
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
            text = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(text), text))
        else:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tenant = Tenant("a", 100.0, (5, 9), (1, 9), {"x-tenant": "a"})
        found = await play(url, [tenant], 0.3, "seed", after=3.0)
        first, bodies[:] = sorted(map(json.dumps, bodies)), []
        again = await play(url, [tenant], 0.3, "seed", after=3.0)
    assert len(found) == len(again) > 10
    assert [one.sent for one in found] == [one.sent for one in again]
    assert first == sorted(map(json.dumps, bodies))
    by_status = {one.status: one for one in found}
    assert set(by_status) == {None, 200, 429}
    assert (by_status[200].prompt, by_status[200].cached, by_status[200].answered) == (7, 2, 3)
    assert by_status[200].first is not None
    assert by_status[None].ended is by_status[429].first is None


@pytest.mark.parametrize("begun", [0.0, 30.0])
async def test_answer_that_began_may_end_while_others_are_given_up(begun: float) -> None:
    given_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = json.loads(await reader.readexactly(size))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        if body["max_tokens"] == 1:
            await reader.read()  # until the client leaves
            if begun:
                given_up.set()
        else:
            writer.write(b'data: {"choices": []}\n\n')
            await given_up.wait()
            usage = {"prompt_tokens": 7, "completion_tokens": 3}
            writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tenants = [Tenant("begins", 40.0, (5, 9), (2, 9)), Tenant("waits", 40.0, (5, 9), (1, 1))]
        found = await play(url, tenants, 0.3, "seed", after=2.0, begun=begun)
        given_up.set()
    assert {one.tenant for one in found} == {"begins", "waits"}
    assert {one.first is None for one in found if one.tenant == "begins"} == {False}
    assert {(one.ended is not None, one.prompt) for one in found if one.tenant == "begins"} == {
        (True, 7) if begun else (False, 0)
    }
    assert all(one.first is None and one.ended is None for one in found if one.tenant == "waits")
