"""What every waiting queue owes its engine, and what each policy adds."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.batching import POLICIES, BatchQueue, BatchState, Candidate, Decision, StepOutcome, make_queue
from plumage.batching.feather import Feather
from plumage.batching.prefixes import PrefixRecord
from plumage.batching.radix import Radix
from plumage.batching.stop import QLearning
from plumage.errors import ConfigurationError, StateError

EVERY = pytest.mark.parametrize("policy", POLICIES)


class Never:
    """A stop policy that always says STOP."""

    def decide(self, state: BatchState) -> Decision:
        return Decision.STOP

    def observe(self, outcome: StepOutcome) -> None:
        pass


def queue(policy: str, **options: object) -> BatchQueue:
    return make_queue(policy, rng=random.Random(3), **options)


def vector(text: str) -> tuple[int, ...]:
    return tuple(hash(text[: i + 1]) & 0xFFFF_FFFF for i in range(len(text)))


def candidate(name: Hashable, text: str = "aaaa", arrival: float = 0.0, group: str | None = None) -> Candidate:
    return Candidate(name, vector(text), 64 * len(text), arrival, group or text[:1])


@EVERY
def test_requests_come_out_once_each_and_the_length_is_true(policy: str) -> None:
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
def test_never_stop_with_nothing_active(policy: str) -> None:
    waiting = queue(policy)
    waiting.insert(candidate("only"))
    assert waiting.select(now=0.0) == "only"


@EVERY
def test_a_choice_is_stable_until_something_changes(policy: str) -> None:
    waiting = queue(policy)
    for number in range(10):
        waiting.insert(candidate(number, "ab"[number % 2] * 3, arrival=number))
    waiting.add(waiting.select(now=1.0))
    assert len({waiting.select(now=1.0) for _ in range(5)}) == 1


@EVERY
def test_a_preempted_request_comes_back_first(policy: str) -> None:
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
    assert waiting.select(now=0.0) in ("third", None)  # the policy's own word again


@EVERY
def test_a_request_past_its_bound_is_admitted_next_whatever_the_policy_says(policy: str) -> None:
    waiting = queue(policy, max_wait=5.0)
    waiting.insert(candidate("sibling", "aaaa", arrival=0.0))
    waiting.add("sibling")
    waiting.insert(candidate("stranger", "zz", arrival=1.0))
    for number in range(200):
        waiting.insert(candidate(number, "aaaa", arrival=2.0))
    assert waiting.select(now=6.0) == "stranger"


@EVERY
def test_aborts_of_absent_requests_are_tolerated_and_misuse_is_not(policy: str) -> None:
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
def test_no_sequence_of_moves_loses_a_request(policy: str, moves: list[int], seed: int) -> None:
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


def test_feather_stops_at_a_stranger_and_goes_on_when_the_batch_is_done() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one", "aaaa"))
    waiting.insert(candidate("stranger", "zzzz"))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    assert (len(waiting), waiting.stops) == (1, 1)
    waiting.finish("one")
    assert waiting.select(now=0.0) == "stranger"


def test_feather_decides_anew_after_each_step() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one"))
    waiting.add("one")
    waiting.insert(candidate("two"))
    for _ in range(3):
        waiting.select(now=0.0)
        waiting.observe(StepOutcome(0.01, 1))
    assert waiting.stops == 3


def test_algorithm_7_b_is_the_current_batch_not_the_new_admissions() -> None:
    seen: list[int] = []

    class Watching(Never):
        def decide(self, state: BatchState) -> Decision:
            seen.append(state.batch)
            return Decision.ADD

    waiting = Feather(Watching())
    for number in range(4):
        waiting.insert(candidate(number))
        waiting.add(waiting.select(now=0.0))
        waiting.observe(StepOutcome(0.01, 1))
    assert seen == [1, 2, 3]


def test_lpm_takes_the_longest_cached_prefix_and_falls_back_to_fcfs_in_a_long_queue() -> None:
    def first_after_seeing(policy_limit: int | None) -> Hashable:
        waiting = queue("Lpm", fcfs_above=policy_limit)
        waiting.insert(candidate("warm", "aaaa"))
        waiting.add("warm")
        for number in range(4):
            waiting.insert(candidate(f"cold{number}", f"{number}bbb"))
        waiting.insert(candidate("sibling", "aaab"))
        return waiting.select(now=0.0)

    assert first_after_seeing(128) == "sibling"
    assert first_after_seeing(4) == "cold0"
    assert first_after_seeing(None) == "sibling"


def test_dfs_weight_serves_the_heavier_branch_first() -> None:
    waiting = queue("DfsWeight")
    for name, text in (("light", "bb"), ("heavy1", "aax"), ("heavy2", "aay"), ("heavy3", "ab")):
        waiting.insert(candidate(name, text))
    served = []
    while len(waiting):
        waiting.add(chosen := waiting.select(now=0.0))
        served.append(chosen)
    assert set(served[:2]) == {"heavy1", "heavy2"}
    assert served[2:] == ["heavy3", "light"]


def test_oracle_keeps_batches_homogeneous_and_takes_the_fullest_group_next() -> None:
    waiting = queue("Oracle")
    for number, group in enumerate("abbcbc"):
        waiting.insert(candidate(number, group * 3, group=group))
    waiting.add(first := waiting.select(now=0.0))
    assert first == 1
    waiting.add(waiting.select(now=0.0))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    for number in (1, 2, 4):
        waiting.finish(number)
    assert waiting.select(now=0.0) == 3


def test_dynamic_batching_follows_the_step_time_and_ignores_prefill() -> None:
    waiting = queue("Dynamic", target=0.1, largest=64)
    for number in range(100):
        waiting.insert(candidate(number))
    for _ in range(8):
        waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    waiting.observe(StepOutcome(9.0, 8, prefill_tokens=500))
    assert waiting.select(now=0.0) is None
    waiting.observe(StepOutcome(0.01, 8))
    assert waiting.select(now=0.0) is not None
    waiting.observe(StepOutcome(0.5, 8))
    assert waiting.select(now=0.0) is None


def test_radix_gives_the_tip_loss_order_of_the_tree() -> None:
    waiting = queue("Radix")
    for name in ("active", "twin"):
        waiting.insert(candidate(name, "aaaaaaaaaaaaaa"))
        waiting.add(name)
    waiting.insert(candidate("stranger", "b", arrival=1.0))
    waiting.insert(candidate("sibling", "aaaaaaaaaaaaab", arrival=2.0))
    assert waiting.select(now=2.0) == "sibling"
    waiting.remove("sibling")
    assert waiting.select(now=2.0) is None


@settings(max_examples=150, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["insert", "insert", "add", "finish", "remove"]), st.text("ab", max_size=5))
    )
)
def test_radix_asks_about_as_little_loss_as_the_tree(moves: list[tuple[str, str]]) -> None:
    asked: dict[str, list[BatchState]] = {"tree": [], "radix": []}

    class Noting(Never):
        def __init__(self, name: str) -> None:
            self.name = name

        def decide(self, state: BatchState) -> Decision:
            asked[self.name].append(state)
            return Decision.ADD

    tree, radix = Feather(Noting("tree")), Radix(Noting("radix"))
    active: list[Hashable] = []
    for number, (move, text) in enumerate(moves):
        if move == "insert":
            for one in (tree, radix):
                one.insert(candidate(number, text or "c", arrival=number))
        elif move == "finish" and active:
            for one in (tree, radix):
                one.finish(active[0])
            del active[0]
        elif move in ("add", "remove") and (chosen := radix.select(0.0)) is not None:
            assert tree.select(0.0) is not None
            for one in (tree, radix):
                one.add(chosen) if move == "add" else one.remove(chosen)
            active += [chosen] if move == "add" else []
    assert [(s.batch, s.loss, s.depth, s.peers) for s in asked["tree"]] == [
        (s.batch, s.loss, s.depth, s.peers) for s in asked["radix"]
    ]


def test_radix_takes_any_stop_policy() -> None:
    assert isinstance(queue("Radix", stop="QLearning", alpha=0.3).policy, QLearning)
    with pytest.raises(ConfigurationError, match="no stop policy named 'Fcfs'; there are: Bandit"):
        queue("Radix", stop="Fcfs")


def test_asking_again_moves_no_floor() -> None:
    waiting = queue("Radix")
    waiting.insert(candidate(0))
    waiting.add(0)
    waiting.insert(candidate(1))
    for _ in range(20):
        waiting.select(now=0.0)
    assert waiting.policy.floor == 2


@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Heuristic", "ChtOrder", "Radix"])
def test_strangers_without_kin_fill_the_batch_in_the_order_they_came(policy: str) -> None:
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
def test_a_batch_that_has_drained_to_one_waits_for_a_group_to_lead(policy: str) -> None:
    waiting = queue(policy)
    waiting.insert(candidate("last", "a" * 12))
    waiting.add("last")
    for number in range(3):
        waiting.insert(candidate(number, "b" * 12))
    assert waiting.select(now=0.0) is None
    waiting.finish("last")
    assert waiting.select(now=0.0) == 0


def test_the_prefix_record_is_bounded_and_closed_under_ancestors() -> None:
    record = PrefixRecord(capacity=6)
    record.note(vector("aaaa"))
    record.note(vector("bbbb"))
    assert record.depth(vector("aaaa")) == 2
    assert record.depth(vector("bbbbc")) == 4
    assert record.depth(()) == 0


@EVERY
def test_an_arrival_that_is_no_number_is_refused_and_leaves_the_queue_as_it_was(policy: str) -> None:
    waiting = queue(policy)
    with pytest.raises(StateError, match="NaN"):
        waiting.insert(candidate("lost", arrival=float("nan")))
    waiting.insert(candidate("lost"))
    assert waiting.select(now=0.0) == "lost"
