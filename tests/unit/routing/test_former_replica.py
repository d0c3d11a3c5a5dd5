"""A prompt that no replica holds goes to its conversation's former replica, if that is nearly as good as the best."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.hashing.chunks import ENDS
from plumage.routing.former import FormerHomes
from plumage.routing.interface import Query, ReplicaState
from plumage.routing.lbgr import Lbgr
from plumage.routing.lbgr_settings import LbgrSettings

REPLICAS = [ReplicaState(slot) for slot in range(4)]


def lowered(homes: FormerHomes, chunks: list[int], **hits: float) -> list[float]:
    scores = [1.0] * len(REPLICAS)
    held = {int(slot.removeprefix("slot")): tokens for slot, tokens in hits.items()}
    homes.prefer(homes.of(Query(0.0, 1000.0, held, chunks), max(held.values(), default=0.0)), REPLICAS, scores)
    return scores


def test_slot_with_the_longest_known_beginning_is_preferred() -> None:
    homes = FormerHomes(0.25)
    homes.sent([1, 2, 3], 2)
    homes.sent([1, 2, 3, 4, 5], 3)
    assert lowered(homes, [1, 2, 3, 9]) == [1.0, 1.0, 0.8, 1.0]
    assert lowered(homes, [1, 2, 3, 4, 5, 6]) == [1.0, 1.0, 1.0, 0.8]
    assert lowered(homes, [1, 2, 9]) == [1.0] * 4, "a beginning that many share has no former replica"
    assert lowered(homes, []) == [1.0] * 4


def test_former_replica_is_known_from_the_end_of_the_cached_part_too() -> None:
    homes = FormerHomes(0.25)
    homes.sent([1, 2, 3], 2)
    chunks = [1, 2, 3, *range(100, 400)]
    assert homes.of(Query(0.0, 1000.0, {}, chunks), 0.0) is None, "too far from the prompt's end"
    assert homes.of(Query(0.0, 3030.0, {1: 1600.0}, chunks), 1600.0) is None
    short = [1, 2, 3, 4]
    assert homes.of(Query(0.0, 1000.0, {1: 750.0}, short), 750.0) == 2


@given(chunks=st.integers(0, 64), known=st.integers(1, 64), held=st.floats(0.0, 1000.0))
def test_chunks_of_one_size_are_searched_alike_with_and_without_their_ends(
    chunks: int, known: int, held: float
) -> None:
    with_ends, without, prompt = FormerHomes(0.25), FormerHomes(0.25), list(range(chunks))
    for homes in (with_ends, without):
        homes.sent(list(range(known)), 2)
    query = Query(0.0, 1000.0, {}, prompt)
    assert with_ends.of(replace(query, ends=ENDS), held) == without.of(query, held)


def test_end_of_the_last_turn_is_found_by_its_size_in_a_long_prompt() -> None:
    homes, prompt = FormerHomes(0.25), list(range(237))
    homes.sent(prompt[:200], 2)

    def former(chunks: int, share: float = 0.0) -> int | None:
        return homes.of(Query(0.0, 1000.0, {}, prompt[:chunks], ends=ENDS), 1000.0 * share)

    assert former(203) == 2, "12 KiB behind it"
    assert former(204) is None
    assert former(237, ENDS[201] / ENDS[237]) == 2, "the end of the cached part"


@pytest.mark.parametrize("instruction", [[], [50, 51]])
def test_prefix_that_many_prompts_share_has_no_former_replica(instruction: list[int]) -> None:
    homes = FormerHomes(0.25)
    homes.sent([1, 2], 2)

    def following(chunks: list[int]) -> int | None:
        slot = homes.of(Query(0.0, 1000.0, {}, chunks), 0.0)
        homes.sent(chunks, 3)
        return slot

    found = [following([1, 2, *instruction, 100 + number]) for number in range(10)]
    assert found == [2] * 8 + [None] * 2, "also where all continue with the same instruction"


def test_prompt_that_comes_again_and_again_has_no_former_replica() -> None:
    homes = FormerHomes(0.25)
    found = []
    for _ in range(11):
        prompt = [1, 2]
        found.append(homes.of(Query(0.0, 1000.0, {}, prompt), 0.0))
        homes.sent(prompt, 2)
    assert found == [None] + [2] * 8 + [None] * 2


def test_lbgr_copies_a_shared_prefix_more_readily_than_a_conversation() -> None:
    def chosen(second: list[int], work: float) -> int:
        policy = Lbgr(rng=random.Random(1), settings=LbgrSettings(spread=0.0))
        first = Query(0.0, 2000.0, {}, [1, 2])
        policy.finished(policy.routed(first, policy.choose(first, REPLICAS[:1])), 2.0, 0.0)
        busy = [ReplicaState(0, foreign_work=work), ReplicaState(1)]
        return policy.choose(Query(100.0, 2100.0, {0: 2000.0}, second), busy).slot

    conversation, shared = [1, 2, 3], [1, 9, 3]
    assert chosen(conversation, 5.0) == 0
    assert chosen(shared, 5.0) == 1
    assert chosen(conversation, 500.0) == 1


def test_wait_for_the_own_replica_is_bounded_for_long_prompts() -> None:
    policy = Lbgr(rng=random.Random(1), settings=LbgrSettings(spread=0.0, crowding=0.0))
    first = Query(0.0, 128_000.0, {}, [1, 2])
    policy.finished(policy.routed(first, policy.choose(first, REPLICAS[:1])), 20.0, 0.0)
    busy = [ReplicaState(0, foreign_work=200.0), ReplicaState(1)]
    assert policy.choose(Query(1000.0, 128_100.0, {0: 128_000.0}, [1, 2, 3]), busy).slot == 1


def test_history_on_a_replica_that_is_no_candidate_costs_nothing() -> None:
    policy = Lbgr(rng=random.Random(1), settings=LbgrSettings(spread=0.0))
    first = Query(0.0, 2000.0, {}, [1, 2])
    policy.finished(policy.routed(first, policy.choose(first, REPLICAS[:1])), 2.0, 0.0)
    others = REPLICAS[1:]
    known = policy.choose(Query(100.0, 2100.0, {0: 2000.0}, [1, 2, 3]), others).scores
    unknown = policy.choose(Query(100.0, 2100.0, {0: 2000.0}, [7, 8, 9]), others).scores
    assert list(known) == pytest.approx(list(unknown))


def test_memory_is_bounded_and_ends_with_its_replica() -> None:
    homes = FormerHomes(0.25, most=2)
    for end in (1, 2, 1, 3):
        homes.sent([end], end)
    assert lowered(homes, [2]) == [1.0] * 4, "the longest unused entry was dropped"
    assert lowered(homes, [1]) == [1.0, 0.8, 1.0, 1.0]
    homes.forget(1)
    assert lowered(homes, [1]) == [1.0] * 4
    assert lowered(homes, [3]) == [1.0, 1.0, 1.0, 0.8]


def test_a_deleted_replica_leaves_the_order_of_the_others() -> None:
    most = 500  # several oldest prompts are looked up at once
    homes = FormerHomes(0.25, most=most)
    for end in range(most + 1):
        homes.sent([end], 1 + end % 2)
    homes.forget(1)
    for end in range(most, 2 * most):
        homes.sent([end], 3)
    known = [end for end in range(2 * most) if lowered(homes, [end]) != [1.0] * 4]
    assert known == list(range(most, 2 * most))


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
