"""llm-d's default since v0.10, against its two plugins written out over the whole history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.routing import Query, ReplicaState
from plumage_bench.baselines.routing import make_policy

PEAK, PENALTY, AFFINITY, EXPIRES = 15_928.0, 18.0, 0.8, 300.0


@dataclass
class Sent:
    """One dispatched request. tokens: predicted uncached tokens. first: its first token has arrived."""

    slot: int
    at: float
    chunks: tuple[int, ...]
    tokens: float
    first: bool = False


def share(query: Query, slot: int, history: Sequence[Sent]) -> float:
    best = 0
    for sent in history:
        if sent.slot == slot:
            same = [ours == theirs for ours, theirs in zip(query.chunks, sent.chunks, strict=False)]
            best = max(best, same.index(False) if False in same else len(same))
    return best / len(query.chunks)


def in_flight(slot: int, now: float, history: Sequence[Sent]) -> float:
    return sum(sent.tokens for sent in history if sent.slot == slot and not sent.first and sent.at >= now - EXPIRES)


def allowed(query: Query, slots: Sequence[int], history: Sequence[Sent]) -> set[int]:
    """The slots that filter and scorer leave: one, or several equal ones."""
    loads = {slot: in_flight(slot, query.now, history) for slot in slots}
    warm = [slot for slot in slots if share(query, slot, history) >= AFFINITY]
    cold = [slot for slot in slots if slot not in warm]
    kept = warm or list(slots)
    if warm and cold and min(loads[s] for s in warm) - min(loads[s] for s in cold) > PENALTY * PEAK:
        kept = list(slots)
    costs = {slot: loads[slot] + (1 - share(query, slot, history)) * query.tokens for slot in kept}
    return {slot for slot in kept if costs[slot] <= min(costs.values()) + 1e-6}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_choice_passes_the_filter_and_has_the_best_score(seed: int) -> None:
    rng = random.Random(seed)
    policy = make_policy("LlmD", rng=random.Random(seed))
    history: list[Sent] = []
    tickets = []
    now = 0.0
    for _ in range(40):
        now += rng.choice([0.0, 1.0, 200.0])
        slots = rng.sample(range(4), rng.randint(1, 4))
        path = tuple(10 * family + place for family in [rng.randrange(3)] for place in range(rng.randint(1, 8)))
        query = Query(now, rng.choice([500.0, 200_000.0]), {}, path)
        choice = policy.choose(query, [ReplicaState(slot) for slot in slots])
        assert choice.slot in allowed(query, slots, history)
        tickets.append(policy.routed(query, choice))
        uncached = (1 - share(query, choice.slot, history)) * query.tokens
        history.append(Sent(choice.slot, now, path, uncached))
        if rng.random() < 0.4:
            number = rng.randrange(len(tickets))
            end = rng.choice([policy.first_token, policy.failed])
            end(tickets[number], now)
            history[number].first = True


def _send(policy: object, now: float, tokens: float, chunks: tuple[int, ...], *slots: int) -> int:
    query = Query(now, tokens, {}, chunks)
    choice = policy.choose(query, [ReplicaState(slot) for slot in slots])  # type: ignore[attr-defined]
    policy.routed(query, choice)  # type: ignore[attr-defined]
    return int(choice.slot)


def test_saturated_warm_replica_is_left_for_five_minutes() -> None:
    policy = make_policy("LlmD", rng=random.Random(1))
    assert _send(policy, 0.0, 290_000.0, (1, 2), 0) == 0
    assert _send(policy, 299.0, 100.0, (1, 2), 0, 1) == 1, "290,000 tokens are more than 18 s at 15,928 a second"
    policy = make_policy("LlmD", rng=random.Random(1))
    _send(policy, 0.0, 290_000.0, (1, 2), 0)
    assert _send(policy, 301.0, 100.0, (1, 2), 0, 1) == 0, "an entry stops counting after five minutes"


def test_warm_replica_is_kept_below_the_penalty() -> None:
    policy = make_policy("LlmD", rng=random.Random(1))
    _send(policy, 0.0, 280_000.0, (1, 2), 0)
    assert _send(policy, 1.0, 100.0, (1, 2), 0, 1) == 0


def test_replica_below_the_affinity_is_not_preferred() -> None:
    policy = make_policy("LlmD", rng=random.Random(1))
    _send(policy, 0.0, 1000.0, (1, 2, 3), 0)
    assert _send(policy, 1.0, 1000.0, (1, 2, 3, 4), 0, 1) == 1, "three quarters are less than 0.8"


def test_choices_list_the_replicas_that_the_filter_kept() -> None:
    policy = make_policy("LlmD", rng=random.Random(1))
    _send(policy, 0.0, 1000.0, (1, 2), 0)
    choice = policy.choose(Query(1.0, 1000.0, {}, (1, 2)), [ReplicaState(0), ReplicaState(1)])
    assert [replica.slot for replica in choice.considered] == [0]
    assert len(choice.scores) == 1


def test_forgotten_slot_starts_empty() -> None:
    policy = make_policy("LlmD", rng=random.Random(1))
    _send(policy, 0.0, 1000.0, (1, 2), 0)
    policy.forget(0)
    _send(policy, 0.0, 1.0, (9,), 1)
    assert _send(policy, 1.0, 1000.0, (1, 2), 0, 1) == 0, "no tokens in flight there"


@pytest.mark.parametrize("name", ["affinity", "peak_prefill", "expires"])
def test_option_out_of_range_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"LlmD.{name} must be above 0"):
        make_policy("LlmD", rng=random.Random(1), **{name: 0.0})
