"""Workloads have the papers' shapes and repeat by their seed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import mean

import pytest

from plumage_bench.workloads import (
    FEWSHOT_SUITES,
    ArticleKind,
    ArticleShape,
    ClosedLoop,
    FewshotShape,
    GspShape,
    LongdocShape,
    MultiturnShape,
    OpenLoop,
    Prompt,
    agent_sessions,
    article_prompts,
    conversations,
    fewshot_prompts,
    gsp_prompts,
    longdoc_prompts,
)


def _shared(one: Prompt, other: Prompt) -> int:
    pairs = zip(one.blocks, other.blocks, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _flat(rounds: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    return [prompt for client in rounds for prompt in client]


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: gsp_prompts(GspShape(groups=10, queries=4), seed),
        lambda seed: longdoc_prompts(LongdocShape(documents=8), seed),
        lambda seed: fewshot_prompts(FewshotShape(5, 700, questions=50), seed),
        lambda seed: _flat(conversations(MultiturnShape(clients=8), seed)),
        lambda seed: article_prompts(ArticleShape("rag", 60), seed),
        lambda seed: article_prompts(ArticleShape("code", 60), seed),
        lambda seed: article_prompts(ArticleShape("summaries", 60), seed),
        lambda seed: article_prompts(ArticleShape("mix", 60), seed),
        lambda seed: _flat(agent_sessions(ArticleShape("agents", 60), seed)),
    ],
)
def test_seed_repeats_and_blocks_are_whole(make: object) -> None:
    assert callable(make)
    first: list[Prompt] = make(1)
    assert first == make(1)
    assert first != make(2)
    assert all(len(prompt.blocks) == prompt.tokens // 16 for prompt in first)
    assert all(prompt.output_tokens >= 1 for prompt in first)


def test_gsp_has_the_shape_of_the_paper() -> None:
    prompts = gsp_prompts(GspShape(), 3)
    assert len(prompts) == 4096
    assert Counter(prompt.group for prompt in prompts) == Counter(dict.fromkeys(range(128), 32))
    assert Counter(prompt.tokens for prompt in prompts)[512] == 26 * 32
    one, other = [prompt for prompt in prompts if prompt.group == 4][:2]
    assert _shared(one, other) == 8192 // 2 // 16
    stranger = next(prompt for prompt in prompts if prompt.group != 4)
    assert _shared(one, stranger) == 0


def test_worst_order_of_gsp_alternates_between_groups() -> None:
    prompts = gsp_prompts(GspShape(groups=7, queries=3, round_robin=True), 3)
    assert [prompt.group for prompt in prompts] == list(range(7)) * 3


def test_rounds_extend_the_conversation() -> None:
    rounds = conversations(MultiturnShape(output_tokens=20), 1)
    assert Counter(len(client) for client in rounds) == {2: 32, 4: 32, 6: 32, 8: 32}
    client = next(client for client in rounds if len(client) == 8)
    assert [prompt.tokens for prompt in client] == [1024 * turn + 20 * (turn - 1) for turn in range(1, 9)]
    for before, after in itertools.pairwise(client):
        conversation = (*before.blocks, *before.output_blocks)
        assert tuple(after.blocks[: len(conversation)]) == conversation


def test_fewshot_suites_have_the_means_of_the_papers() -> None:
    for name, shape in FEWSHOT_SUITES.items():
        prompts = fewshot_prompts(shape, 1)
        subjects = {prompt.group: prompt for prompt in prompts}
        assert len(subjects) == shape.subjects, name
        assert mean(prompt.output_tokens for prompt in prompts) == pytest.approx(shape.output_tokens, rel=0.05)
        assert mean(prompt.tokens for prompt in subjects.values()) == pytest.approx(
            shape.example_tokens + shape.question_tokens, rel=0.1
        )


def test_zipf_suite_has_a_favourite() -> None:
    prompts = fewshot_prompts(FewshotShape(50, 700, questions=2000, zipf=1.0), 1)
    counts = Counter(prompt.group for prompt in prompts)
    assert counts[0] > 5 * counts[40]


def test_documents_are_asked_all_their_questions() -> None:
    shape = LongdocShape(documents=16, round_robin=True)
    prompts = longdoc_prompts(shape, 2)
    assert [prompt.group for prompt in prompts[:16]] == list(range(16))
    counts = Counter(prompt.group for prompt in prompts)
    assert set(counts) == set(range(16))
    assert all(4 <= count <= 12 for count in counts.values())


def test_poisson_arrivals_keep_their_order_at_any_rate() -> None:
    prompts = gsp_prompts(GspShape(groups=20, queries=20), 1)
    slow = [arrival.at for arrival in OpenLoop(prompts, 5.0, 1).initial()]
    fast = [arrival.at for arrival in OpenLoop(prompts, 10.0, 1).initial()]
    assert slow == pytest.approx([2 * at for at in fast])
    assert slow[-1] == pytest.approx(400 / 5.0, rel=0.15)


def test_clients_wait_for_their_answer_and_for_a_place() -> None:
    source = ClosedLoop(conversations(MultiturnShape(clients=10), 1), 2.0, 1)
    first = list(source.initial())
    assert [arrival.client for arrival in first] == list(range(10))
    assert [arrival.at for arrival in first] == sorted(arrival.at for arrival in first)
    early = source.after(0, 0.1)
    assert early is not None
    assert early.at > first[-1].at, "those that were ready first are first"
    late = source.after(1, 1e3)
    assert late is not None
    assert late.at == 1e3
    total = 2
    for client in range(10):
        while source.after(client, 2e3) is not None:
            total += 1
    assert total + 10 == len(source)


@pytest.mark.parametrize(("kind", "least", "most"), [("rag", 0.25, 0.7), ("code", 0.8, 1.0), ("summaries", 0.0, 0.1)])
def test_streams_of_the_article_share_as_much_as_their_kind(kind: ArticleKind, least: float, most: float) -> None:
    prompts = article_prompts(ArticleShape(kind), 3)
    assert len(prompts) == 2048
    assert least < _found_by_an_unbounded_cache(prompts) < most


def _found_by_an_unbounded_cache(prompts: Sequence[Prompt]) -> float:
    seen: set[int] = set()
    found = 0
    for prompt in prompts:
        found += len(seen.intersection(prompt.blocks))
        seen.update(prompt.blocks)
    return 16 * found / sum(prompt.tokens for prompt in prompts)


def test_calls_of_an_agent_continue_and_share_the_tools_of_their_kind() -> None:
    sessions = agent_sessions(ArticleShape("agents"), 3)
    assert all(4 <= len(calls) <= 10 for calls in sessions)
    assert 2048 <= sum(map(len, sessions)) < 2058
    for calls in sessions:
        for before, after in itertools.pairwise(calls):
            conversation = (*before.blocks, *before.output_blocks)
            assert tuple(after.blocks[: len(conversation)]) == conversation
            assert after.tokens > before.tokens + before.output_tokens
    assert len({calls[0].blocks[0] for calls in sessions}) == 4


def test_mix_drifts_from_shared_to_private_prompts() -> None:
    prompts = article_prompts(ArticleShape("mix", 4000), 3)
    first, last = prompts[:1000], prompts[-1000:]
    assert _found_by_an_unbounded_cache(first) > 1.3 * _found_by_an_unbounded_cache(last)
    assert {24, 64, 4, 150, 200} == {prompt.output_tokens for prompt in prompts}, "all five are in it"


def test_number_of_concurrent_clients_is_constant() -> None:
    shape = MultiturnShape(clients=10, rounds=(2,))
    source = ClosedLoop(conversations(shape, 1), 2.0, 1, at_once=3)
    talking = [arrival.client for arrival in source.initial()]
    assert talking == [0, 1, 2]
    begun, served = set(talking), 3
    while talking:
        client = talking.pop(0)
        if (arrival := source.after(client, 5.0)) is not None:
            talking.append(arrival.client)
            begun.add(arrival.client)
            served += 1
            assert len(talking) <= 3
    assert begun == set(range(10))
    assert served == len(source) == 20
