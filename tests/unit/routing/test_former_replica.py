"""A prompt that no replica holds goes to its conversation's former replica, if that is nearly as good as the best."""

from __future__ import annotations

import random

from plumage.routing.former import FormerHomes
from plumage.routing.interface import Query, ReplicaState
from plumage.routing.lbgr import Lbgr, LbgrSettings

REPLICAS = [ReplicaState(slot) for slot in range(4)]


def lowered(homes: FormerHomes, chunks: list[int], **hits: float) -> list[float]:
    scores = [1.0] * len(REPLICAS)
    held = {int(slot.removeprefix("slot")): tokens for slot, tokens in hits.items()}
    homes.prefer(homes.of(Query(0.0, 1000.0, held, chunks)), REPLICAS, scores)
    return scores


def test_slot_with_the_longest_known_beginning_is_preferred() -> None:
    homes = FormerHomes(0.25)
    homes.sent([1, 2, 3], 2)
    homes.sent([1, 2, 3, 4, 5], 3)
    assert lowered(homes, [1, 2, 3, 9]) == [1.0, 1.0, 0.8, 1.0]
    assert lowered(homes, [1, 2, 3, 4, 5, 6]) == [1.0, 1.0, 1.0, 0.8]
    assert lowered(homes, [1, 2, 9]) == [1.0] * 4, "a beginning that many share has no former replica"
    assert lowered(homes, []) == [1.0] * 4


def test_scores_stay_where_a_replica_holds_half_of_the_prompt() -> None:
    homes = FormerHomes(0.25)
    homes.sent([1, 2, 3], 2)
    assert lowered(homes, [1, 2, 3, 4], slot1=500.0) == [1.0] * 4
    assert lowered(homes, [1, 2, 3, 4], slot1=499.0) == [1.0, 1.0, 0.8, 1.0]


def test_memory_is_bounded_and_ends_with_its_replica() -> None:
    homes = FormerHomes(0.25, most=2)
    for end in (1, 2, 1, 3):
        homes.sent([end], end)
    assert lowered(homes, [2]) == [1.0] * 4, "the longest unused entry was dropped"
    assert lowered(homes, [1]) == [1.0, 0.8, 1.0, 1.0]
    homes.forget(1)
    assert lowered(homes, [1]) == [1.0] * 4
    assert lowered(homes, [3]) == [1.0, 1.0, 1.0, 0.8]


def test_lbgr_returns_an_evicted_conversation_to_its_former_replica_unless_that_is_busy() -> None:
    def chosen(loyalty: float, tokens_before: float) -> list[int]:
        """Where the next turns of conversations go. Each began on another replica, and so much work waits there."""
        slots = []
        for seed in range(20):
            policy = Lbgr(rng=random.Random(seed), settings=LbgrSettings(loyalty=loyalty, spread=0.0))
            first = Query(0.0, 2000.0, {}, [1, 2])
            policy.finished(policy.routed(first, policy.choose(first, REPLICAS[:1])), 2.0, 0.0)
            if tokens_before:
                other = Query(100.0, tokens_before, {}, [7])
                policy.routed(other, policy.choose(other, REPLICAS[:1]))
            second = Query(100.0, 3000.0, {}, [1, 2, 3])
            slots.append(policy.choose(second, REPLICAS).slot)
        return slots

    assert set(chosen(0.2, 0.0)) == {0}
    assert len(set(chosen(0.0, 0.0))) > 1
    assert 0 not in chosen(0.2, 9000.0)


def test_former_replica_is_always_scored_in_a_large_fleet() -> None:
    fleet = [ReplicaState(slot) for slot in range(200)]
    first, second = Query(0.0, 2000.0, {}, [1, 2]), Query(100.0, 3000.0, {}, [1, 2, 3])
    for seed in range(20):
        policy = Lbgr(rng=random.Random(seed), settings=LbgrSettings(considered=8, spread=0.0))
        policy.finished(policy.routed(first, policy.choose(first, fleet[150:151])), 2.0, 0.0)
        choice = policy.choose(second, fleet)
        assert choice.slot == 150
        assert len(choice.considered) == len(choice.scores) <= 8
        assert policy.choose(second, fleet[:150]).slot != 150, "it is no longer a candidate"
