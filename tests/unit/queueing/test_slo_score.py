"""The order of a tenant's requests by score: what is cached and cheap first, and all in time."""

from __future__ import annotations

import random

import pytest

from plumage.queueing import FairQueue, PromptCost
from plumage.queueing.slo_score import CANDIDATES, slo_score


def queue(*items: tuple[str, float, float]) -> FairQueue[str]:
    """Of (name, tokens, deadline), which wait since 0."""
    waiting: FairQueue[str] = FairQueue({"all": 1.0})
    for name, tokens, deadline in items:
        waiting.add(name, "all", "alice", tokens, deadline, 0.0)
    return waiting


def test_fewest_tokens_to_compute_go_first() -> None:
    waiting = queue(("new", 1_000.0, 10.0), ("cached", 1_000.0, 10.0), ("short", 200.0, 10.0))
    compute = {"new": 1_000.0, "cached": 50.0, "short": 200.0}
    assert [waiting.next(1.0, compute.__getitem__)[0] for _ in range(3)] == ["cached", "short", "new"]


def test_place_rises_as_the_deadline_comes_near() -> None:
    waiting = queue(("costly", 1_000.0, 10.0), ("cheap", 100.0, 20.0))
    compute = {"costly": 1_000.0, "cheap": 100.0}
    assert waiting.next(5.0, compute.__getitem__)[0] == "cheap"
    waiting.add("cheap", "all", "alice", 100.0, 25.0, 5.0)
    assert waiting.next(8.1, compute.__getitem__)[0] == "costly", "a fifth of its time is left"


def test_equal_scores_go_by_deadline() -> None:
    waiting = queue(("second", 100.0, 20.0), ("first", 100.0, 10.0))
    assert waiting.next(10.0, lambda _: 0.0)[0] == "first"


@pytest.mark.parametrize("phase", [number / 20 for number in range(20)])
@pytest.mark.parametrize("choices", [2, 4, 10, 50])
def test_costly_request_goes_in_time_beside_endless_cheap_ones(choices: int, phase: float) -> None:
    """Choices a second; the queue is swept ten times a second, and the objective is 4 s."""
    waiting = queue(("costly", 5_000.0, 4.0))
    events = [(number / 10 + 0.001, "sweep") for number in range(50)]
    events += [((number + phase) / choices, "choice") for number in range(5 * choices)]
    for count, (now, event) in enumerate(sorted(events)):
        waiting.add(f"cheap {count}", "all", "alice", 50.0, now + 4.0, now)
        if event == "sweep":
            assert "costly" not in waiting.late(now), "it waited until it was too late"
        elif waiting.next(now, lambda item: 5_000.0 if item == "costly" else 50.0)[0] == "costly":
            return
    pytest.fail("it never went")


def test_cheapest_goes_first_in_a_queue_of_any_length() -> None:
    waiting = queue(*((f"old {number}", 1_000.0, 60.0) for number in range(300)), ("cached", 50.0, 60.0))
    compute = {"cached": 50.0}
    assert waiting.next(1.0, lambda item: compute.get(item, 1_000.0))[0] == "cached"


def test_choice_scores_a_bounded_number_of_requests() -> None:
    waiting = queue(*((str(number), 1_000.0 - number, 60.0 + number) for number in range(500)))
    asked: list[str] = []

    def compute(item: str) -> float:
        asked.append(item)
        return 100.0

    waiting.next(0.0, compute)
    soonest = [str(number) for number in range(CANDIDATES)]
    cheapest = [str(499 - number) for number in range(CANDIDATES)]
    assert asked == soonest + cheapest


def test_tenants_share_the_service_whatever_their_scores() -> None:
    waiting: FairQueue[str] = FairQueue({"all": 1.0})
    rng, passed = random.Random(1), {"cached": 0, "new": 0}
    for number in range(400):
        for tenant in passed:
            waiting.add(f"{tenant} {number}", "all", tenant, 100.0, rng.uniform(60, 90), 0.0)
    for _ in range(200):
        item, _ = waiting.next(1.0, lambda item: 1.0 if item.startswith("cached") else 100.0)
        passed[item.split()[0]] += 1
    assert abs(passed["cached"] - passed["new"]) <= 1


def test_wait_counts_what_is_cheaper() -> None:
    """1,000 tokens a second."""
    waiting = queue(*((f"old {number}", 100.0, 60.0) for number in range(200)))
    for number in range(150):
        waiting.next(number / 10)
    waiting.add("costly", "all", "alice", 5_000.0, 70.0, 14.9)
    assert waiting.wait("all", "alice", 75.0, 14.9, score=50.0) == 0.0
    assert waiting.wait("all", "alice", 75.0, 14.9, score=100.0) == pytest.approx(5.0, rel=0.1)
    assert waiting.wait("all", "alice", 75.0, 14.9, score=6_000.0) == pytest.approx(10.0, rel=0.1)


def test_score_falls_to_zero_before_the_deadline() -> None:
    scores = [slo_score(100.0, 0.0, 10.0, now) for now in (0.0, 4.0, 8.0, 10.0, 99.0)]
    assert scores == pytest.approx([80.0, 40.0, 0.0, 0.0, 0.0])
    assert slo_score(100.0, 5.0, 5.0, 5.0) == 0.0, "no time at all"


def test_cost_is_that_on_the_best_replica_with_room() -> None:
    found = {0: (3, 600), 1: (9, 5_000)}
    cost = PromptCost(1_100.0, 1_000.0, [1, 2, 3])
    assert cost.on([0, 2], lambda _: found, 0.0) == 500.0
    assert cost.on([0, 1], lambda _: found, 0.0) == 100.0, "no more than its prompt"
    assert cost.on([2], lambda _: found, 0.0) == 1_100.0
    assert cost.on([], lambda _: found, 0.0) == 1_100.0


def test_match_is_looked_up_again_after_a_while() -> None:
    cost, looked_up = PromptCost(1_000.0, 1_000.0, [1]), []

    def match(chunks: object) -> dict[int, tuple[int, int]]:
        looked_up.append(chunks)
        return {0: (1, 100 * len(looked_up))}

    assert [cost.on([0], match, now) for now in (0.0, 0.05, 0.2)] == [900.0, 900.0, 800.0]


def test_match_on_thousands_of_replicas_is_kept_in_part() -> None:
    """Those that hold most."""
    cost = PromptCost(5_000.0, 5_000.0, [1])
    assert cost.on({4_000}, lambda _: {slot: (1, slot) for slot in range(5_000)}, 0.0) == 5_000.0
    assert cost.on(range(5_000), lambda _: {}, 0.0) == 1.0
    assert len(cost._cached) == 64
