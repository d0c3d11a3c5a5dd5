"""FEATHER's queue: its stop at a stranger, and the batch that its policy decides about."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.queues import Never, candidate

from plumage.batching import BatchState, Decision, StepOutcome
from plumage.batching.feather import Feather
from plumage.batching.stop.always import Always


def test_feather_stops_at_a_stranger_and_continues_when_the_batch_has_ended() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one", "aaaa"))
    waiting.insert(candidate("stranger", "zzzz"))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    assert (len(waiting), waiting.stops) == (1, 1)
    waiting.finish("one")
    assert waiting.select(now=0.0) == "stranger"


def test_feather_decides_again_after_each_step() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one"))
    waiting.add("one")
    waiting.insert(candidate("two"))
    for _ in range(3):
        waiting.select(now=0.0)
        waiting.observe(StepOutcome(0.01, 1))
    assert waiting.stops == 3


def test_algorithm_7_b_is_the_current_batch_without_new_admissions() -> None:
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


class AsksAll:
    """Always adds, and is asked each time."""

    def decide(self, state: BatchState) -> Decision:
        return Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        pass


@pytest.mark.parametrize("max_wait", [3.0, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_order_is_the_same_whether_or_not_the_policy_is_asked(max_wait: float, seed: int) -> None:
    rng = random.Random(seed)
    queues = [Feather(Always(), max_wait=max_wait), Feather(AsksAll(), max_wait=max_wait)]
    running: list[int] = []
    for number in range(400):
        vector = rng.choice("abcd") * rng.randrange(4) + str(rng.randrange(3))
        for waiting in queues:
            waiting.insert(candidate(number, vector, arrival=float(number)))
        while len(running) < 5 and len(queues[0]):
            one, other = (waiting.select(now=number + 0.5) for waiting in queues)
            assert one == other
            running.append(int(str(one)))
            for waiting in queues:
                waiting.add(one)
        for name in [name for name in running if rng.random() < 0.2]:
            running.remove(name)
            for waiting in queues:
                waiting.finish(name)
        for waiting in queues:
            waiting.observe(StepOutcome(0.01, len(running)))
    assert len(queues[0]) == len(queues[1]) > 0
    assert queues[0].tip_loss == queues[1].tip_loss


def groups(vectors: list[str], *, active: int, max_wait: float = 10.0) -> Feather:
    """Requests 0, 1, … wait since the seconds of these numbers; `active` others of no group run."""
    waiting = Feather(Always(), max_wait=max_wait)
    for number in range(active):
        waiting.insert(candidate(f"runs {number}", ""))
        waiting.add(f"runs {number}")
    for number, vector in enumerate(vectors):
        waiting.insert(candidate(number, vector, arrival=float(number)))
    return waiting


def admitted(waiting: Feather, now: float, most: int = 200) -> list[object]:
    """The next admissions at that time. The batch keeps its size: for each one that starts, another one ends."""
    order: list[object] = []
    while len(waiting) and len(order) < most:
        chosen = waiting.select(now)
        assert chosen == waiting.select(now), "the choice is stable"
        waiting.add(chosen)
        waiting.finish(chosen)
        order.append(chosen)
    return order


def test_overdue_request_brings_those_that_share_its_prefix() -> None:
    waiting = groups(["aa", "bb", "cc", "bb", "aa", "cc", "aa"], active=4)
    assert admitted(waiting, now=100.0) == [0, 4, 6, 1, 3, 2, 5]


def test_without_a_shared_prefix_overdue_requests_come_in_order_of_arrival() -> None:
    waiting = groups(["aa", "bb", "", "cc", "dd", ""], active=1)
    assert admitted(waiting, now=100.0) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("active", [1, 3])
def test_turn_ends_after_eight_batches(active: int) -> None:
    full = active + 1  # with the one that starts
    hot = 8 * full + 5
    waiting = groups(["aa"] + ["zz"] + ["aa"] * hot, active=active)
    assert admitted(waiting, now=100.0).index(1) == 8 * full


def test_group_that_nobody_waits_for_any_more_gets_no_turn() -> None:
    waiting = groups(["aa", "bb", "aa"], active=2)
    assert admitted(waiting, now=100.0, most=1) == [0]
    waiting.remove(2)
    assert admitted(waiting, now=100.0) == [1]


def test_turn_survives_the_abort_of_the_request_that_began_it() -> None:
    waiting = groups(["aa", "bb", "aa"], active=2)
    assert waiting.select(now=100.0) == 0
    waiting.remove(0)
    assert admitted(waiting, now=100.0) == [2, 1]


def test_those_that_follow_come_in_order_of_arrival_whatever_their_length() -> None:
    """All share a system prompt, and half of them have a long tail, which the tree's order would put last."""
    vectors = [f"s{chr(ord('A') + number)}" if number % 2 else f"s{chr(ord('A') + number)}tail" for number in range(20)]
    assert admitted(groups(vectors, active=3), now=100.0) == list(range(20))


def test_request_behind_many_of_one_group_waits_for_one_turn() -> None:
    vectors = ["aa"] * 8 + ["zz"] + ["aa"] * 100
    order = admitted(groups(vectors, active=2), now=200.0, most=25)
    assert order == [*range(8), *range(9, 25), 8], "eight batches of three"
    waiting = groups(["aa", "zz"], active=2)
    for number in range(50):  # young ones keep coming
        waiting.insert(candidate(f"young {number}", "aa", arrival=99.0))
    assert admitted(waiting, now=100.0, most=17).index(1) == 16


def test_turn_counts_batches_of_its_largest_size() -> None:
    waiting = groups(["aa"] + ["zz"] + ["aa"] * 200, active=15)
    assert admitted(waiting, now=1_000.0, most=1) == [0]
    for number in range(14):
        waiting.finish(f"runs {number}")
    assert admitted(waiting, now=1_000.0).index(1) == 8 * 16 - 1


def test_turn_does_not_outlive_those_that_waited_at_its_beginning() -> None:
    waiting = groups(["aa", "aa", "aa"], active=8)
    assert admitted(waiting, now=20.0, most=1) == [0]
    waiting.remove(1)
    waiting.remove(2)
    waiting.insert(candidate("old", "bb", arrival=1_000.0))
    waiting.insert(candidate(2, "aa", arrival=1_009.0))
    assert waiting.select(now=1_011.0) == "old", "another request has the id of one that was in the turn"


def test_turn_ends_when_nobody_is_overdue() -> None:
    waiting = groups(["aa", "aa", "aa"], active=4)
    assert admitted(waiting, now=100.0, most=1) == [0]
    waiting.remove(1)
    waiting.remove(2)
    waiting.insert(candidate("new", "bb", arrival=100.0))
    assert waiting.select(now=101.0) == "new"
    for number in range(3):
        waiting.insert(candidate(f"hot {number}", "aa", arrival=101.5))
    assert waiting.select(now=111.0) == "new", "the hot group's turn is over, and it is not overdue"


def test_overload_of_groups_takes_turns_and_loses_nobody() -> None:
    """Every request of ten groups is overdue: the admissions change group seldom, and each group's oldest in turn."""
    vectors = ["abcdefghij"[number * 7 % 10] * 2 for number in range(200)]
    order = admitted(groups(vectors, active=1), now=1_000.0)
    assert sorted(order) == list(range(200))  # type: ignore[type-var]
    letters = [vectors[number][0] for number in order]  # type: ignore[call-overload]
    changes = sum(one != other for one, other in pairwise(letters))
    assert changes == 19, "20 requests of each group are a turn of eight batches of two, and one of four"


def served(waiting: Feather, now: float, size: int, most: int = 200, *, together: bool = False) -> list[object]:
    """The next admissions to a batch that is kept full. Where it is full its oldest request ends, or, together, all."""
    order: list[object] = []
    running: list[object] = []
    while len(waiting) and len(order) < most:
        if len(running) == size:
            ended = list(running) if together else running[:1]
            del running[: len(ended)]
            for one in ended:
                waiting.finish(one)
        chosen = waiting.select(now)
        waiting.add(chosen)
        running.append(chosen)
        order.append(chosen)
    return order


def test_group_in_service_has_a_turn_before_those_that_are_as_overdue() -> None:
    waiting = groups(["aa", "bb"] * 10, active=0)
    waiting.add(waiting.select(now=9.0))
    order = served(waiting, now=100.0, size=4, most=9)
    assert order == [2, 4, 6, 8, 10, 12, 14, 16, 18], "0 was the oldest, and 1 is overdue since 11"


def test_group_in_service_is_served_no_longer_than_a_turn() -> None:
    waiting = groups(["aa"] * 100, active=0)
    for number in range(40):
        waiting.add(number)
        waiting.finish(number)
    waiting.insert(candidate("stranger", "zz", arrival=50.0))
    assert "stranger" in served(waiting, now=200.0, size=4, most=62)


def test_request_that_is_not_overdue_passes_nobody_who_is() -> None:
    waiting = groups(["aa", "zz"], active=0)
    waiting.add(waiting.select(now=0.0))
    for number in range(5):
        waiting.insert(candidate(f"young {number}", "aa", arrival=99.0))
    assert waiting.select(now=100.0) == 1


def test_turn_goes_on_with_the_nearest_of_the_overdue() -> None:
    waiting = groups(["abc", "xyz", "abd", "abc", "xyz", "aee"], active=0)
    assert served(waiting, now=100.0, size=3) == [0, 3, 2, 5, 1, 4]


def test_batch_that_ends_together_does_not_end_its_turn() -> None:
    vectors = ["aa"] + ["bb"] * 40 + ["aa"] * 39
    order = served(groups(vectors, active=0), now=1_000.0, size=20, together=True)
    assert [vectors[number] for number in order] == ["aa"] * 40 + ["bb"] * 40  # type: ignore[call-overload]


def test_group_that_did_not_fit_is_completed_by_the_next_batch() -> None:
    """Ten groups of five in batches of eight that end together, while nobody is overdue."""
    vectors = ["abcdefghij"[number * 7 % 10] * 2 for number in range(50)]
    order = served(groups(vectors, active=0), now=0.0, size=8, together=True)
    assert sorted(order) == list(range(50))  # type: ignore[type-var]
    letters = [vectors[number][0] for number in order]  # type: ignore[call-overload]
    assert sum(one != other for one, other in pairwise(letters)) == 9
