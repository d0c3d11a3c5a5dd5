"""Which replicas of a large fleet are scored, and that the shortlist changes nothing else."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.routing import Choice, Lbgr, LbgrSettings, Query, ReplicaState, Ticket
from plumage.routing.shortlist import Shortlist


@st.composite
def _fleets(draw: st.DrawFn) -> tuple[int, list[ReplicaState], dict[int, float]]:
    slots = draw(st.lists(st.integers(0, 300), min_size=3, max_size=200, unique=True))
    most = draw(st.integers(2, len(slots) - 1))
    holders = draw(st.lists(st.sampled_from([*slots, 301, 302]), unique=True))
    hits = {slot: float(draw(st.integers(0, 5))) for slot in holders}
    return most, [ReplicaState(slot) for slot in slots], hits


@given(_fleets(), st.none() | st.integers(0, 310), st.integers(0, 99))
def test_shortlist_has_the_wanted_length_with_the_deepest_owners_and_the_former_replica(
    fleet: tuple[int, list[ReplicaState], dict[int, float]], home: int | None, seed: int
) -> None:
    most, replicas, hits = fleet
    shortlist = Shortlist(most, random.Random(seed))
    for _ in range(2):  # the second time with the same list
        chosen = [replica.slot for replica in shortlist.of(hits, replicas, home)]
        assert len(set(chosen)) == len(chosen) <= most
        assert set(chosen) <= {replica.slot for replica in replicas}
        bound = sorted(hits.values(), reverse=True)[most // 2 - 1] if len(hits) >= most // 2 else -1.0
        deeper = {slot for slot, tokens in hits.items() if tokens > bound}
        assert deeper & {replica.slot for replica in replicas} <= set(chosen)
        assert (home in chosen) or home not in {replica.slot for replica in replicas}


def test_short_fleet_is_returned_itself_without_a_draw() -> None:
    rng = random.Random(1)
    before, replicas = rng.getstate(), [ReplicaState(slot) for slot in range(8)]
    assert Shortlist(8, rng).of({3: 9.0}, replicas, 5) is replicas
    assert rng.getstate() == before


def test_shortlist_without_owners_is_drawn_evenly() -> None:
    replicas = [ReplicaState(slot) for slot in range(100)]
    shortlist = Shortlist(8, random.Random(1))
    drawn: Counter[int] = Counter()
    for _ in range(5000):
        some = shortlist.of({}, replicas)
        assert len(some) == 8
        drawn.update(replica.slot for replica in some)
    assert set(drawn) == set(range(100))
    assert max(drawn.values()) < 1.25 * min(drawn.values())


def test_equal_owners_are_drawn_evenly() -> None:
    replicas = [ReplicaState(slot) for slot in range(100)]
    shortlist = Shortlist(8, random.Random(1))
    hits = dict.fromkeys(range(50), 100.0) | {70: 300.0}
    met: Counter[int] = Counter()
    for _ in range(2000):
        some = [replica.slot for replica in shortlist.of(hits, replicas)]
        assert 70 in some
        assert sum(slot in hits for slot in some) >= 4
        met.update(some)
    holders = [met[slot] for slot in range(50)]
    assert min(holders) > 0.7 * max(holders)


def test_other_list_is_another_fleet() -> None:
    shortlist = Shortlist(4, random.Random(1))
    for slots in (range(50), range(40, 90)):
        replicas = [ReplicaState(slot) for slot in slots]
        some = shortlist.of({45: 9.0}, replicas)
        assert 45 in {replica.slot for replica in some}
        assert all(any(one is replica for replica in replicas) for one in some)


class _Driven:
    """A fleet of many speeds that serves at once and reports every outcome."""

    def __init__(self, policy: Lbgr, count: int) -> None:
        self.policy = policy
        self.states = [ReplicaState(slot) for slot in range(count)]
        self.under_way: list[tuple[Ticket, float]] = []

    def follow(self, query: Query, choice: Choice) -> None:
        ticket = self.policy.routed(query, choice)
        done = query.now + (0.1 + 0.01 * (choice.slot % 7)) * query.tokens / 1000.0
        self.under_way.append((ticket, done))
        while self.under_way and self.under_way[0][1] <= query.now:
            ended, at = self.under_way.pop(0)
            self.policy.first_token(ended, at)
            self.policy.finished(ended, at, ended.hit_tokens)


def _queries(count: int, slots: int) -> list[Query]:
    rng, queries, now = random.Random(3), [], 0.0
    for _ in range(count):
        now += rng.expovariate(50.0)
        holders = rng.sample(range(slots), rng.choice([0, 0, 1, 5, slots // 2]))
        queries.append(Query(now, rng.choice([500, 2000, 4000]), {slot: rng.choice([200, 400]) for slot in holders}))
    return queries


def _lbgr(considered: int, **settings: float) -> Lbgr:
    return Lbgr(rng=random.Random(7), settings=replace(LbgrSettings(considered=considered), **settings))


def test_small_fleet_is_scored_without_a_shortlist() -> None:
    bounded, unbounded = _Driven(_lbgr(64), 64), _Driven(_lbgr(10**6), 64)
    for query in _queries(400, 64):
        choices = [one.policy.choose(query, one.states) for one in (bounded, unbounded)]
        assert choices[0] == choices[1]
        assert not choices[0].considered
        for one, choice in zip((bounded, unbounded), choices, strict=True):
            one.follow(query, choice)


def test_scores_on_the_shortlist_equal_those_among_all() -> None:
    """Both policies see the same history, that of the shortlist. Its choices are nearly the best of all."""
    bounded, whole = (_Driven(_lbgr(most, spread=0.0), 150) for most in (32, 10**6))  # `spread` compares candidates
    better: list[int] = []
    for query in _queries(1000, 150):
        choice, all_scores = bounded.policy.choose(query, bounded.states), whole.policy.choose(query, whole.states)
        slots = [replica.slot for replica in choice.considered]
        assert len(slots) == len(choice.scores) <= 32
        assert list(choice.scores) == [all_scores.scores[slot] for slot in slots]
        assert choice.scores[slots.index(choice.slot)] == min(choice.scores)
        better.append(sum(score < min(choice.scores) for score in all_scores.scores))
        for one in (bounded, whole):
            one.follow(query, choice)
    assert sum(better) / len(better) < 150 / 32, "of 32 draws the best has about n/33 before it"


def test_untried_slot_can_be_chosen() -> None:
    policy = _lbgr(4)
    first = [ReplicaState(slot) for slot in range(10)]
    later = [*first, *(ReplicaState(slot) for slot in range(10, 40))]
    policy.choose(Query(0.0, 1000, {}), first)
    chosen = {policy.choose(Query(1.0, 1000, {}), later).slot for _ in range(300)}
    assert max(chosen) > 30


@pytest.mark.parametrize("considered", [1, 0, -3])
def test_shortlist_of_fewer_than_two_is_refused(considered: int) -> None:
    with pytest.raises(ConfigurationError, match="considered"):
        LbgrSettings(considered=considered)
