"""Prompts whose early bytes changed since the previous turn are found, and the cause is named."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.hashing.chunks import ENDS, depth_of
from plumage_router.request.prompt import Prompt
from plumage_router.request.turns import Turn, turn_of
from plumage_router.request.usage import wanted_usage
from plumage_router.routing import prefix_breaks
from plumage_router.routing.prefix_breaks import BreakCause, Difference, PrefixBreaks, find_difference

BYTES_PER_TOKEN = 4.0


def text(seed: int, size: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(("quick", "brown", "fox", "jumps", "lazy")) + str(n % 7) for n in range(size))[:size]


def rendered(*messages: tuple[str, str]) -> bytes:
    return "".join(f"<|{role}|>\n{content}\n" for role, content in messages).encode() + b"<|assistant|>\n"


def prompt(of: bytes, turn: Turn | None) -> Prompt:
    return Prompt(b"/v1/chat/completions", "m", b"", True, wanted_usage(None), of, (), turn=turn)


def compared(old: bytes, new: bytes, *, fewer: bool = False) -> Difference | None:
    return find_difference(old, new, len(old), len(new), fewer=fewer)


TASK, ANSWER, NEXT = ("user", text(1, 3000)), ("assistant", text(2, 900)), ("user", text(3, 200))
RULES = text(4, 4000)
TOOLS = [json.dumps({"name": f"tool_{n}", "description": text(10 + n, 500)}) for n in range(6)]


def turns(before: str, after: str) -> tuple[bytes, bytes]:
    """Two turns of a conversation; the system prompt has `before` in the first and `after` in the second."""
    first = rendered(("system", before), TASK)
    return first, rendered(("system", after), TASK, ANSWER, NEXT)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (f"Now: 2026-11-27T14:15:03Z\n{RULES}", f"Now: 2026-11-27T14:16:41Z\n{RULES}", BreakCause.DATE_OR_NUMBER),
        (f"Today is Friday, Nov 27.\n{RULES}", f"Today is Saturday, November 28.\n{RULES}", BreakCause.DATE_OR_NUMBER),
        (f"It is 9:59 am.\n{RULES}", f"It is 10:01 am.\n{RULES}", BreakCause.DATE_OR_NUMBER),
        (f"You have 12 turns left.\n{RULES}", f"You have 9 turns left.\n{RULES}", BreakCause.DATE_OR_NUMBER),
        (f"trace=1f3c99ab-77\n{RULES}", f"trace=9be0d12c-41\n{RULES}", BreakCause.IDENTIFIER),
        ("[" + ",".join(TOOLS) + "]" + RULES, "[" + ",".join(TOOLS[::-1]) + "]" + RULES, BreakCause.ORDER),
        ('{"name":"x","type":"y"}' + RULES, '{"type":"y","name":"x"}' + RULES, BreakCause.ORDER),
        (RULES, "Be brief. " + RULES, BreakCause.INSERTED),
        ("Alice asks.\n" + RULES, "Bob and Carol want to know.\n" + RULES, BreakCause.CHANGED),
    ],
)  # fmt: skip
def test_cause_is_named(before: str, after: str, cause: BreakCause) -> None:
    first, second = turns(before, after)
    found = compared(first, second)
    assert found is not None
    assert found.cause is cause
    same = len(RULES) + len(TASK[1])
    assert same - 100 <= found.lost <= same + 100
    assert first[: found.at] == second[: found.at]


def test_history_without_its_oldest_messages() -> None:
    older = [(role, text(20 + n, 1500)) for n, role in enumerate(("user", "assistant", "user", "assistant"))]
    first = rendered(("system", RULES), *older, TASK)
    second = rendered(("system", RULES), *older[2:], TASK, ANSWER, NEXT)
    found = compared(first, second, fewer=True)
    assert found is not None
    assert (found.cause, found.at >= len(RULES)) == (BreakCause.TRIMMED, True)


@given(st.binary(max_size=4000), st.binary(max_size=400))
def test_continued_prompt_loses_nothing(first: bytes, more: bytes) -> None:
    assert compared(first, first + more) is None


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=3000), st.binary(max_size=200))
def test_what_is_lost_stands_in_both(one: bytes, other: bytes, same: bytes, more: bytes) -> None:
    old, new = one + same, other + same + more
    found = compared(old, new)
    if found is not None:
        assert found.lost >= prefix_breaks.MIN_LOST
        assert new[found.resumes : found.resumes + prefix_breaks._PROBE] in old
        assert old[: found.at] == new[: found.at]


def test_other_conversation_loses_nothing() -> None:
    one = rendered(("system", "You help Ann. " + RULES), TASK)
    other = rendered(("system", "You help Bob. " + text(8, 4000)), ("user", text(9, 3000)))
    assert compared(one, other) is None


@pytest.mark.parametrize(("before", "after"), [("10", "11"), ("10", "9"), ("9", "10"), ("", "Be brief. ")])
def test_end_of_a_long_prompt_counts_as_lost(before: str, after: str) -> None:
    """Only its beginning is kept."""
    first, second = turns(before + RULES, after + RULES)
    found = find_difference(first[:3000], second[:3000], len(first), len(second), fewer=False)
    assert found is not None
    assert len(first) - 100 <= found.lost <= len(first)


def test_no_more_is_lost_than_the_new_prompt_has() -> None:
    first, second = turns("Day 1. " + RULES, "Day 2. " + RULES)
    found = find_difference(first[:3000], second[:3000], 900_000, 5000, fewer=False)
    assert found is not None
    assert 4000 < found.lost <= 5000


@pytest.mark.parametrize("seed", range(20))
def test_shuffled_tools_are_another_order(seed: int) -> None:
    rng = random.Random(seed)
    tools = [json.dumps({"name": f"t{n}", "description": text(50 + n, rng.randrange(100, 2000))}) for n in range(12)]
    other = rng.sample(tools, len(tools))
    first, second = turns("[" + ", ".join(tools) + "]\n" + RULES, "[" + ", ".join(other) + "]\n" + RULES)
    found = compared(first, second)
    assert found is not None
    assert found.cause is BreakCause.ORDER


@pytest.mark.parametrize("name", ["Mark", "monitor", "decide", "Sunita", "Mayor"])
def test_word_that_begins_like_a_month_is_no_date(name: str) -> None:
    found = compared(*turns(f"For {name}.\n" + RULES, "For Juliet.\n" + RULES))
    assert found is not None
    assert found.cause is BreakCause.CHANGED


def test_part_that_a_template_drops_is_no_trimmed_history() -> None:
    thought = text(30, 2000)
    first = rendered(("system", RULES), ("assistant", thought + ANSWER[1]), TASK)
    second = rendered(("system", RULES), ("assistant", ANSWER[1]), TASK, ANSWER, NEXT)
    for fewer, cause in ((False, BreakCause.REMOVED), (True, BreakCause.TRIMMED)):
        found = compared(first, second, fewer=fewer)
        assert found is not None
        assert found.cause is cause


class TestConversations:
    def breaks(self) -> PrefixBreaks:
        return PrefixBreaks(lambda _: BYTES_PER_TOKEN)

    def test_break_is_counted_once_a_turn(self) -> None:
        breaks = self.breaks()
        first, second = turns("Now 14:15\n" + RULES, "Now 14:16\n" + RULES)
        assert breaks.check(prompt(first, Turn(1, None, 1)), 0, 0.0) is None
        found = breaks.check(prompt(second, Turn(2, 1, 3)), 0, 1.0)
        assert found is not None
        assert found.cause == BreakCause.DATE_OR_NUMBER
        assert found.lost_tokens == pytest.approx((len(RULES) + len(TASK[1])) / BYTES_PER_TOKEN, rel=0.02)
        assert breaks.counts == {BreakCause.DATE_OR_NUMBER: 1}
        assert breaks.lost_tokens == {BreakCause.DATE_OR_NUMBER: found.lost_tokens}
        assert breaks.check(prompt(second, Turn(2, 1, 3)), 0, 2.0) is None, "the client repeats the request"

    @pytest.mark.parametrize("depth", [0, 12])
    def test_what_a_replica_has_is_not_lost(self, depth: int) -> None:
        breaks = self.breaks()
        first, second = turns("Now 14:15\n" + RULES, "Now 14:16\n" + RULES)
        breaks.check(prompt(first, Turn(1, None, 1)), 0, 0.0)
        found = breaks.check(prompt(second, Turn(2, 1, 3)), depth, 1.0)
        assert found is not None
        assert found.lost_tokens == pytest.approx((len(first) - ENDS[depth]) / BYTES_PER_TOKEN, rel=0.05)
        assert breaks.check(prompt(first, Turn(3, 2, 5)), depth_of(len(first)), 2.0) is None

    def test_branches_of_a_conversation_are_compared(self) -> None:
        breaks = self.breaks()
        first, second = turns("Now 14:15\n" + RULES, "Now 14:16\n" + RULES)
        breaks.check(prompt(first, Turn(1, None, 1)), 0, 0.0)
        assert breaks.check(prompt(second, Turn(2, 1, 3)), 0, 1.0) is not None
        assert breaks.check(prompt(second, Turn(3, 1, 3)), 0, 2.0) is not None

    def test_old_turn_is_forgotten(self) -> None:
        breaks = self.breaks()
        first, second = turns("Now 14:15\n" + RULES, "Now 14:16\n" + RULES)
        breaks.check(prompt(first, Turn(1, None, 1)), 0, 0.0)
        breaks.expire(prefix_breaks.MAX_AGE)
        assert len(breaks) == 1
        breaks.expire(prefix_breaks.MAX_AGE + 1)
        assert (len(breaks), breaks._bytes) == (0, 0)
        assert breaks.check(prompt(second, Turn(2, 1, 3)), 0, prefix_breaks.MAX_AGE + 1) is None

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prefix_breaks, "MOST_TURNS", 3)
        breaks = self.breaks()
        for number in range(10):
            breaks.check(prompt(b"x" * 100, Turn(number, None, 1)), 0, 0.0)
        assert len(breaks) == 3
        monkeypatch.setattr(prefix_breaks, "MOST_BYTES", 250)
        breaks.check(prompt(b"x" * 100, Turn(11, None, 1)), 0, 0.0)
        assert len(breaks) == 2
        breaks.check(prompt(b"x" * 100, Turn(11, None, 1)), 0, 0.0)
        assert breaks._bytes == 200

    def test_prompt_without_turn_is_ignored(self) -> None:
        breaks = self.breaks()
        assert breaks.check(prompt(b"x" * 100, None), 0, 0.0) is None
        assert breaks.check(prompt(b"", Turn(1, None, 1)), 0, 0.0) is None
        assert len(breaks) == 0


def chat(*messages: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in messages]


class TestTurns:
    def test_next_turn_finds_the_previous(self) -> None:
        history = chat(("system", "s"), ("user", LONG))
        keys = [turn_of(history, "")]
        for number in range(4):
            history += [{"role": "assistant", "content": None, "tool_calls": [{"id": f"{number}"}]}]
            history += [{"role": "tool", "content": "ok", "tool_call_id": f"{number}"}]
            keys.append(turn_of(history, ""))
        assert None not in keys
        known = [key for key in keys if key is not None]
        assert known[0].previous is None
        assert [key.previous for key in known[1:]] == [key.own for key in known[:-1]]
        assert len({key.own for key in known}) == len(known)
        assert [key.messages for key in known] == [1, 3, 5, 7, 9]

    def test_system_prompt_and_old_messages_do_not_matter(self) -> None:
        old = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
        first = turn_of([*chat(("system", "Monday")), *old], "")
        second = turn_of([*chat(("system", "Tuesday")), *old[2:], *chat(("assistant", "f"), ("user", "g"))], "")
        assert first is not None
        assert second is not None
        assert second.previous == first.own

    def test_parts_count_by_their_texts(self) -> None:
        marked = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
        assert turn_of(chat(("user", marked)), "") == turn_of(chat(("user", [{"type": "text", "text": LONG}])), "")

    def test_equal_texts_of_other_calls_differ(self) -> None:
        """Tools of many agents answer "ok"."""
        keys = {
            turn_of([{"role": "assistant", "content": None, "tool_calls": [{"id": name}]},
                     {"role": "tool", "content": "ok", "tool_call_id": name}], "")
            for name in ("a", "b")
        }  # fmt: skip
        assert len(keys) == 2

    def test_common_beginning_has_no_key(self) -> None:
        assert turn_of(chat(("system", LONG), ("user", "Hi")), "") is None
        later = turn_of(chat(("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")), "")
        assert later is not None
        assert later.previous is None

    def test_tenants_have_different_keys(self) -> None:
        assert turn_of(chat(("user", LONG)), "one") != turn_of(chat(("user", LONG)), "two")

    @pytest.mark.parametrize("content", [None, 5, [None, 3, {"text": 4}], "\ud800", [{"text": "\ud800"}]])
    def test_any_content_has_a_key(self, content: Any) -> None:
        odd = {"role": "user", "content": content, "tool_call_id": [1], "tool_calls": [3, {"id": {}}]}
        found = turn_of([odd, odd, *chat(("assistant", content), ("user", content))], "")
        assert found is not None
        assert found.previous is not None

    def test_only_answers_or_nothing(self) -> None:
        found = turn_of(chat(("assistant", "a"), ("assistant", "b")), "")
        assert found is not None
        assert found.previous is None
        assert turn_of([], "") is None


LONG = text(40, 200)
