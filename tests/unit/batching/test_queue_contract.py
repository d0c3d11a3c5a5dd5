"""The contract that every waiting queue keeps with its engine, FEATHER's and the baselines'."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queues import candidate, queue

from plumage.batching import StepOutcome
from plumage.errors import StateError
from plumage_bench.baselines.batching import POLICY_NAMES

EVERY = pytest.mark.parametrize("policy", POLICY_NAMES)


@EVERY
def test_requests_are_returned_once_each_and_the_length_is_right(policy: str) -> None:
    waiting = queue(policy)
    for number in range(50):
        waiting.insert(candidate(number, "ab"[number % 2] * 4 + str(number % 3), arrival=number))
    out = []
    while len(waiting):
        chosen = waiting.select(now=50.0)
        if chosen is None:  # STOP: the engine runs a step and something finishes
            waiting.observe(StepOutcome(0.01, waiting.active))
            waiting.finish(out[-waiting.active])
            continue
        waiting.add(chosen)
        out.append(chosen)
        assert len(waiting) == 50 - len(out)
    assert sorted(out) == list(range(50))


@EVERY
def test_queue_never_stops_an_empty_batch(policy: str) -> None:
    waiting = queue(policy)
    waiting.insert(candidate("only"))
    assert waiting.select(now=0.0) == "only"


@EVERY
def test_choice_is_stable_until_something_changes(policy: str) -> None:
    waiting = queue(policy)
    for number in range(10):
        waiting.insert(candidate(number, "ab"[number % 2] * 3, arrival=number))
    waiting.add(waiting.select(now=1.0))
    assert len({waiting.select(now=1.0) for _ in range(5)}) == 1


@EVERY
def test_preempted_request_is_first(policy: str) -> None:
    waiting = queue(policy)
    for name in ("first", "second", "third"):
        waiting.insert(candidate(name))
    waiting.add("first")
    waiting.add("second")
    waiting.requeue("second")
    waiting.requeue("first")
    assert (len(waiting), waiting.active) == (3, 0)
    assert waiting.select(now=0.0) == "first"
    waiting.add("first")
    assert waiting.select(now=0.0) == "second"
    waiting.remove("second")
    assert waiting.select(now=0.0) in ("third", None)  # the policy decides again


@EVERY
def test_request_past_the_ageing_bound_is_next(policy: str) -> None:
    waiting = queue(policy, max_wait=5.0)
    waiting.insert(candidate("sibling", "aaaa", arrival=0.0))
    waiting.add("sibling")
    waiting.insert(candidate("stranger", "zz", arrival=1.0))
    for number in range(200):
        waiting.insert(candidate(number, "aaaa", arrival=2.0))
    assert waiting.select(now=6.0) == "stranger"


@EVERY
def test_abort_of_an_absent_request_is_ignored_and_misuse_is_an_error(policy: str) -> None:
    waiting = queue(policy)
    waiting.remove("nobody")
    waiting.insert(candidate("one"))
    with pytest.raises(StateError):
        waiting.insert(candidate("one"))
    with pytest.raises(StateError):
        waiting.finish("one")
    with pytest.raises(StateError):
        waiting.add("two")
    waiting.remove("one")
    assert len(waiting) == 0
    assert waiting.select(now=0.0) is None


@EVERY
@settings(max_examples=25, deadline=None)
@given(moves=st.lists(st.integers(0, 5), max_size=60), seed=st.integers(0, 99))
def test_no_sequence_of_operations_loses_a_request(policy: str, moves: list[int], seed: int) -> None:
    waiting, rng = queue(policy, max_wait=20.0), random.Random(seed)
    inside: set[int] = set()
    active: list[int] = []
    for number, move in enumerate(moves):
        if move <= 1:
            waiting.insert(candidate(number, rng.choice(["aaa", "aab", "bbb", ""]), arrival=number))
            inside.add(number)
        elif move == 2 and inside:
            waiting.remove(gone := rng.choice(sorted(inside)))
            inside.discard(gone)
        elif move == 3 and active:
            waiting.finish(active.pop(rng.randrange(len(active))))
        elif move == 4 and active:
            waiting.requeue(back := active.pop())
            inside.add(back)
        elif (chosen := waiting.select(now=float(number))) is not None:
            assert chosen in inside
            waiting.add(chosen)
            inside.discard(chosen)
            active.append(chosen)
        waiting.observe(StepOutcome(0.01, len(active), prefill_tokens=number % 2))
        assert (len(waiting), waiting.active) == (len(inside), len(active))


@EVERY
def test_arrival_that_is_not_finite_is_refused_and_changes_nothing(policy: str) -> None:
    waiting = queue(policy)
    with pytest.raises(StateError, match="NaN"):
        waiting.insert(candidate("lost", arrival=float("nan")))
    waiting.insert(candidate("lost"))
    assert waiting.select(now=0.0) == "lost"


@pytest.mark.parametrize("policy", ["Heuristic", "Radix"])
def test_repeated_question_does_not_move_the_floor(policy: str) -> None:
    waiting = queue(policy)
    waiting.insert(candidate(0))
    waiting.add(0)
    waiting.insert(candidate(1))
    for _ in range(20):
        waiting.select(now=0.0)
    assert waiting.policy.floor == 2


@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Heuristic", "Predictive", "ChtOrder", "Radix"])
def test_strangers_without_siblings_fill_the_batch_in_order_of_arrival(policy: str) -> None:
    waiting = queue(policy)
    for number in range(40):
        waiting.insert(candidate(number, chr(200 + number) * 12, arrival=number / 100))
    taken = []
    while len(waiting):
        waiting.add(chosen := waiting.select(now=1.0))
        waiting.observe(StepOutcome(0.01, waiting.active))
        taken.append(chosen)
    assert taken == list(range(40))


@pytest.mark.parametrize("policy", ["Heuristic", "Radix"])
def test_batch_drained_to_one_waits_for_a_group_to_lead(policy: str) -> None:
    waiting = queue(policy)
    waiting.insert(candidate("last", "a" * 12))
    waiting.add("last")
    for number in range(3):
        waiting.insert(candidate(number, "b" * 12))
    assert waiting.select(now=0.0) is None
    waiting.finish("last")
    assert waiting.select(now=0.0) == 0
