"""The shares of a model's pools, conversations that keep their pool, and fallbacks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from plumage_router.multi_pool.split import Route, choose, conversation_key, copy_for, may_be_copied

SPLIT = {"chat": Route((("stable", 90), ("canary", 10)), "small"), "small": Route((("spare", 1),))}


def _everywhere(pool: str) -> bool:
    return True


def _shares(routes: dict[str, Route], *away: str) -> Counter[str]:
    return Counter(choose(routes, "chat", str(number), lambda pool: pool not in away) for number in range(5000))


def test_conversations_are_split_by_weight() -> None:
    found = _shares(SPLIT)
    assert set(found) == {"stable", "canary"}
    assert 430 <= found["canary"] <= 570, "500 ± 3.3 standard deviations"


def test_conversation_keeps_its_pool_and_a_larger_share_only_adds() -> None:
    more = {"chat": Route((("stable", 50), ("canary", 50)))}
    for number in map(str, range(500)):
        before = choose(SPLIT, "chat", number, _everywhere)
        assert choose(SPLIT, "chat", number, _everywhere) == before
        if before == "canary":
            assert choose(more, "chat", number, _everywhere) == "canary"


def test_larger_weight_of_any_pool_moves_conversations_only_to_it() -> None:
    before, after = ({"chat": Route((("a", 2), ("b", 1), ("c", weight)))} for weight in (1, 4))
    for number in map(str, range(2000)):
        one, other = (choose(routes, "chat", number, _everywhere) for routes in (before, after))
        assert other in (one, "c")


def test_pool_without_replicas_gives_its_conversations_to_the_others() -> None:
    assert _shares(SPLIT, "canary") == {"stable": 5000}
    three = {"chat": Route((("a", 2), ("b", 1), ("c", 1)))}
    found = _shares(three, "a")
    assert set(found) == {"b", "c"}
    assert abs(found["b"] - found["c"]) < 350


def test_pool_of_weight_zero_gets_no_conversation() -> None:
    routes = {"chat": Route((("old", 0), ("new", 3)))}
    assert _shares(routes) == {"new": 5000}
    assert _shares(routes, "new") == {"new": 5000}


def test_fallback_serves_while_no_pool_has_a_replica() -> None:
    assert _shares(SPLIT, "canary", "stable") == {"spare": 5000}
    assert set(_shares(SPLIT, "canary", "stable", "spare")) == {"stable", "canary"}, "the pool's own error is clear"


def test_fallbacks_in_a_circle_end() -> None:
    circle = {"chat": Route((("a", 1),), "code"), "code": Route((("b", 1),), "chat")}
    assert choose(circle, "chat", "", lambda pool: False) == "a"
    assert choose(circle, "chat", "", lambda pool: pool == "b") == "b"


def test_unknown_name_has_no_pool() -> None:
    assert choose(SPLIT, "nobody", "", _everywhere) == ""


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


TURNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"messages": [_user("hi")]}, {"messages": [_user("hi"), {"role": "assistant", "content": "x"}, _user("more")]}),
    (
        {"messages": [{"role": "system", "content": "at 10:00"}, _user("hi")]},
        {"messages": [{"role": "system", "content": "at 10:01"}, _user("hi")]},
    ),
    ({"messages": [_user([{"type": "text", "text": "hi"}])]}, {"messages": [_user("hi")]}),
    ({"input": "hi"}, {"input": [_user("hi"), _user("more")]}),
    ({"prompt": "x" * 2000}, {"prompt": "x" * 3000}),
    ({"prompt": list(range(600))}, {"prompt": list(range(900))}),
    ({"query": "q", "documents": ["a"]}, {"query": "q", "documents": ["b"]}),
    (
        {"messages": [_user([{"type": "image_url", "image_url": {"url": "data:a"}}, {"type": "text", "text": "hi"}])]},
        {"messages": [_user([{"type": "text", "text": "hi"}])]},
    ),
    ({"prompt_cache_key": "k", "messages": [_user("a")]}, {"prompt_cache_key": "k", "messages": [_user("b")]}),
]


@pytest.mark.parametrize(("first", "second"), TURNS)
def test_turns_of_a_conversation_have_one_key(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert conversation_key("acme", first) == conversation_key("acme", second)
    assert conversation_key("acme", first) != conversation_key("other", first)


OTHERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"messages": [_user("hi")]}, {"messages": [_user("ho")]}),
    ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}),
    ({"input": [1, 2, 3]}, {"input": [3, 2, 1]}),
    ({"input": ["a", "b"]}, {"input": ["c", "b"]}),
    ({"query": "q"}, {"query": "r"}),
    ({"text_1": "q"}, {"text_1": "r"}),
    (
        {"messages": [_user([{"type": "image_url", "image_url": {"url": "data:a"}}])]},
        {"messages": [_user([{"type": "image_url", "image_url": {"url": "data:b"}}])]},
    ),
]


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_other_conversations_have_other_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert conversation_key("acme", one) != conversation_key("acme", other)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"messages": []}, {"messages": [1]}, {"messages": {"role": "user"}}, {"messages": [{"role": "user"}]},
        {"messages": [_user([])]}, {"messages": [_user([{"image_url": {"url": "data:" + "x" * 10**6}}])]},
        {"input": 7}, {"input": None, "prompt": [[1, 2], [3]]}, {"prompt_cache_key": 7}, {"prompt": {"a": 1}},
        {"prompt": "\ud800"},
    ],
)  # fmt: skip
def test_any_body_has_a_short_key(body: dict[str, Any]) -> None:
    key = conversation_key("acme", body)
    assert len(key) < 2000
    assert choose(SPLIT, "chat", key, _everywhere)


def _copied(percent: int) -> set[str]:
    route = Route((("stable", 1),), mirror="next", percent=percent)
    return {key for key in map(str, range(5000)) if copy_for(route, "chat", key, "stable")}


def test_share_of_conversations_is_copied_and_a_larger_one_only_adds() -> None:
    shares = [_copied(percent) for percent in (0, 1, 20, 50, 100)]
    assert (len(shares[0]), len(shares[-1])) == (0, 5000)
    assert 25 <= len(shares[1]) <= 80, "50 ± 3.5 standard deviations"
    assert 900 <= len(shares[2]) <= 1100
    assert all(less < more for less, more in pairwise(shares))


def test_copies_are_drawn_independently_of_the_pool() -> None:
    """Else a canary of a tenth would answer the conversations that are copied."""
    canary = {key for key in map(str, range(5000)) if choose(SPLIT, "chat", key, _everywhere) == "canary"}
    assert 60 <= len(canary & _copied(20)) <= 145, "100 ± 4 standard deviations"


def test_pool_gets_no_copy_of_a_request_that_it_answers() -> None:
    route = Route((("stable", 1),), "small", mirror="spare", percent=100)
    assert copy_for(route, "chat", "1", "stable") == "spare"
    assert copy_for(route, "chat", "1", "spare") == ""
    assert copy_for(Route((("stable", 1),)), "chat", "1", "stable") == ""


@pytest.mark.parametrize(
    ("path", "body", "copied"),
    [
        (b"/v1/chat/completions", {}, True),
        (b"/v1/messages", {}, True),
        (b"/v1/embeddings", {}, True),
        (b"/tokenize", {}, False),
        (b"/v1/messages/count_tokens", {}, False),
        (b"/v1/responses", {}, False),
        (b"/v1/responses", {"store": None}, False),
        (b"/v1/responses", {"store": False}, True),
        (b"/v1/responses", {"store": False, "background": True}, False),
        (b"/v1/responses", {"store": False, "previous_response_id": "resp_1"}, False),
    ],
)
def test_only_requests_without_an_effect_are_copied(path: bytes, body: dict[str, Any], copied: bool) -> None:
    assert may_be_copied(path, body) is copied
