"""LBGR as we run it: it learns each replica's speed, tracks work, spreads when idle and keeps affinity when busy."""

from __future__ import annotations

import random
from collections import Counter
from math import isfinite

import pytest

from plumage.errors import ConfigurationError
from plumage.routing import Choice, Lbgr, LbgrSettings, Query, ReplicaState, Ticket, make_policy


def _policy(seed: int = 1, **settings: float) -> Lbgr:
    return Lbgr(rng=random.Random(seed), settings=LbgrSettings(**settings))


def _states(count: int) -> list[ReplicaState]:
    return [ReplicaState(slot) for slot in range(count)]


class _Fleet:
    """Replicas that serve one request after another, each at its own seconds per thousand computed tokens."""

    def __init__(self, policy: Lbgr, speeds: list[float], fixed: float = 0.0) -> None:
        self.policy, self.speeds, self.fixed = policy, speeds, fixed
        self.states = _states(len(speeds))
        self.free_at = [0.0] * len(speeds)
        self.tickets: list[tuple[float, Ticket]] = []
        self.errors: list[float] = []

    def send(self, now: float, tokens: float, hits: dict[int, float] | None = None) -> int:
        self.catch_up(now)
        query = Query(now, tokens, hits or {})
        choice = self.policy.choose(query, self.states)
        ticket = self.policy.routed(query, choice)
        slot = choice.slot
        miss = (tokens - query.hits.get(slot, 0.0)) / 1000.0
        self.free_at[slot] = max(self.free_at[slot], now) + self.fixed + self.speeds[slot] * miss
        self.tickets.append((self.free_at[slot], ticket))
        return slot

    def catch_up(self, now: float) -> None:
        self.tickets.sort(key=lambda item: item[0])
        while self.tickets and self.tickets[0][0] <= now:
            at, ticket = self.tickets.pop(0)
            assert ticket.predicted_ttft is not None
            self.errors.append(ticket.predicted_ttft - (at - ticket.routed_at))
            self.policy.first_token(ticket, at)
            self.policy.finished(ticket, at, None)


def _drive(fleet: _Fleet, count: int, rate: float, seed: int = 5) -> Counter[int]:
    rng, now = random.Random(seed), 0.0
    slots: Counter[int] = Counter()
    for _ in range(count):
        now += rng.expovariate(rate)
        slots[fleet.send(now, rng.choice([500, 1000, 2000, 4000]))] += 1
    return slots


def test_owner_is_chosen_when_queues_are_equal() -> None:
    fleet = _Fleet(_policy(), [0.15] * 4)
    _drive(fleet, 200, rate=5)
    fleet.catch_up(1e6)
    assert all(fleet.send(2000.0 + step, 4000, {2: 3000.0}) == 2 for step in range(5))


def test_long_queue_outweighs_a_hit() -> None:
    fleet = _Fleet(_policy(), [0.15, 0.15])
    _drive(fleet, 100, rate=4)
    now = 1000.0
    for _ in range(20):  # one burst with the same hot prefix, far more than one replica can take
        fleet.send(now, 8000, {0: 1000.0})
    assert fleet.policy.choose(Query(now, 8000, {0: 1000.0}), fleet.states).slot in (0, 1)
    used = Counter(ticket.slot for _, ticket in fleet.tickets)
    assert min(used[0], used[1]) >= 5


def test_predictions_match_the_outcomes() -> None:
    fleet = _Fleet(_policy(), [0.15] * 3, fixed=0.02)
    _drive(fleet, 1500, rate=8)
    late = fleet.errors[500:]
    assert abs(sum(late)) / len(late) < 0.05
    assert sum(abs(error) for error in late) / len(late) < 0.1


def test_speed_of_each_replica_is_learned() -> None:
    fleet = _Fleet(_policy(), [0.1, 0.4])
    slots = _drive(fleet, 1500, rate=5)
    backlogs = [replica.backlog for replica in fleet.policy._replicas]
    assert backlogs[0].c_miss == pytest.approx(0.1, rel=0.15)
    assert backlogs[1].c_miss == pytest.approx(0.4, rel=0.15)
    assert slots[0] > 2 * slots[1]


def test_cold_requests_spread_over_an_idle_fleet() -> None:
    """The replica that happens to measure fastest must not get every new request, and an untried
    replica must be tried.
    """
    fleet = _Fleet(_policy(), [0.150, 0.151, 0.152, 0.149])
    slots = _drive(fleet, 800, rate=1)
    assert set(slots) == {0, 1, 2, 3}
    assert max(slots.values()) < 2 * min(slots.values())


def test_ties_are_drawn_at_random() -> None:
    policy = _policy()
    chosen = {policy.choose(Query(0.0, 1000, {}), _states(4)).slot for _ in range(100)}
    assert chosen == {0, 1, 2, 3}


def test_busy_fleet_copies_a_hot_prefix_less_than_greedy_routing() -> None:
    """Among eight hot prefixes in a fleet near saturation, counting the delay of others leaves fewer copies."""

    def copies(crowding: float, seed: int) -> int:
        fleet = _Fleet(_policy(crowding=crowding, spread=0.0), [0.15] * 4)
        rng, now = random.Random(seed), 0.0
        held: dict[int, set[int]] = {}
        made = 0
        for _ in range(600):
            now += rng.expovariate(20.0)
            prefix = rng.randrange(8)
            owners = held.setdefault(prefix, set())
            slot = fleet.send(now, 4000, dict.fromkeys(owners, 3000.0))
            made += slot not in owners
            owners.add(slot)
            if len(owners) > 2:
                owners.discard(min(owners))  # a cache evicts
        return made

    seeds = range(8)
    assert sum(copies(LbgrSettings().crowding, seed) for seed in seeds) < 0.9 * sum(copies(0.0, seed) for seed in seeds)


def test_foreign_work_counts_as_work() -> None:
    fleet = _Fleet(_policy(), [0.15, 0.15])
    _drive(fleet, 100, rate=2)
    fleet.catch_up(1e6)
    fleet.states[0].foreign_work = 5.0
    assert all(fleet.policy.choose(Query(2000.0, 1000, {}), fleet.states).slot == 1 for _ in range(20))


def test_work_returns_to_zero_after_success_and_failure() -> None:
    policy, states = _policy(), _states(2)
    tickets = []
    for step in range(40):
        query = Query(step * 0.01, 2000, {})
        tickets.append(policy.routed(query, policy.choose(query, states)))
    for index, ticket in enumerate(tickets):
        if index % 3:
            policy.first_token(ticket, 1.0 + index)
            policy.finished(ticket, 2.0 + index, None)
        else:
            policy.failed(ticket, 1.0 + index)
            policy.failed(ticket, 1.0 + index)
    for replica in policy._replicas:
        assert replica.backlog.requests == 0
        assert replica.backlog.bounds() == (0.0, 0.0)


def test_unstreamed_answer_has_its_first_token_at_its_end() -> None:
    policy, states = _policy(), _states(1)
    query = Query(0.0, 2000, {})
    ticket = policy.routed(query, policy.choose(query, states))
    policy.finished(ticket, 0.3, 0.0)
    assert policy._replicas[0].backlog.requests == 0


def test_one_stall_does_not_divert_traffic_for_good() -> None:
    fleet = _Fleet(_policy(), [0.15, 0.15])
    _drive(fleet, 300, rate=4)
    fleet.catch_up(1e6)
    query = Query(2000.0, 1000, {})
    ticket = fleet.policy.routed(query, Choice(0))
    fleet.policy.first_token(ticket, 2300.0)  # five minutes for a thousand tokens
    fleet.free_at = [0.0, 0.0]
    slots: Counter[int] = Counter()
    now = 2300.0
    for _ in range(600):
        now += 0.3
        slots[fleet.send(now, 1000)] += 1
    assert slots[0] > 100


def test_new_replica_starts_from_the_experience_of_the_fleet() -> None:
    fleet = _Fleet(_policy(), [0.15, 0.15])
    _drive(fleet, 500, rate=5)
    fleet.policy.choose(Query(1e4, 1000, {}), _states(3))
    new = fleet.policy._replicas[2]
    assert new.backlog.c_miss == pytest.approx(0.15, rel=0.2)


def test_predictions_that_fail_count_less() -> None:
    policy, states = _policy(), _states(2)
    now = 0.0
    for step in range(200):
        now += 2.0
        slot = step % 2
        query = Query(now, 4000, {slot: 3000.0})
        ticket = policy.routed(query, Choice(slot))
        policy.first_token(ticket, now + (0.3 if slot else 1.2))
        policy.finished(ticket, now + 1.3, 3000.0 if slot else 0.0)
    assert policy._replicas[0].trust < 0.3
    assert policy._replicas[1].trust == pytest.approx(1.0)
    assert policy.choose(Query(1e3, 4000, {0: 3000.0, 1: 3000.0}), states).slot == 1


def test_late_outcome_does_not_affect_the_next_replica_of_the_slot() -> None:
    policy, states = _policy(), _states(1)
    query = Query(0.0, 2000, {})
    ticket = policy.routed(query, policy.choose(query, states))
    policy.forget(0)
    fresh = policy.routed(query, policy.choose(query, states))
    policy.first_token(ticket, 50.0)
    policy.finished(ticket, 50.0, None)
    policy.failed(ticket, 50.0)
    assert policy._replicas[0].backlog.requests == 1
    policy.failed(fresh, 1.0)
    assert policy._replicas[0].backlog.requests == 0


def test_total_time_is_predicted_once_some_answers_have_ended() -> None:
    policy, states = _policy(), _states(1)
    predicted = []
    for turn in range(60):
        query = Query(20.0 * turn, 4000, {}, stream=False)
        ticket = policy.routed(query, policy.choose(query, states))
        policy.finished(ticket, query.now + 11.0, None)
        predicted.append(ticket.predicted_latency)
    assert predicted[0] is None
    assert predicted[-1] == pytest.approx(11.0, rel=0.1)


def test_both_latencies_are_predicted_and_ordered() -> None:
    policy, states = _policy(), _states(2)
    rng, now = random.Random(3), 0.0
    ticket = None
    for _ in range(300):
        now += 1.0
        query = Query(now, rng.choice([1000, 4000]), {})
        ticket = policy.routed(query, policy.choose(query, states))
        policy.first_token(ticket, now + 0.15 * query.tokens / 1000)
        policy.finished(ticket, now + 0.15 * query.tokens / 1000 + 0.5, None)
    assert ticket is not None
    assert ticket.predicted_ttft is not None
    assert ticket.predicted_latency is not None
    assert ticket.predicted_latency == pytest.approx(ticket.predicted_ttft + 0.5, abs=0.15)


def test_broken_clocks_and_counts_leave_scores_finite() -> None:
    policy, states = _policy(), _states(3)
    rng = random.Random(4)
    for _ in range(2000):
        query = Query(rng.uniform(-1e3, 1e9), rng.choice([0.0, 1.0, 1e7]), {rng.randrange(3): rng.uniform(0, 1e8)})
        ticket = policy.routed(query, policy.choose(query, states))
        policy.first_token(ticket, rng.uniform(-1e6, 1e9))
        policy.finished(ticket, rng.uniform(-1e6, 1e9), None)
    scores = policy.choose(Query(1e9, 1000, {}), states).scores
    assert all(map(isfinite, scores))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"lbgr\.crowding"):
        LbgrSettings(crowding=-1)
    with pytest.raises(ConfigurationError, match=r"lbgr\.forgetting"):
        LbgrSettings(forgetting=1.5)
    with pytest.raises(ConfigurationError, match="Lbgr"):
        make_policy("Lbgr", rng=random.Random(0), no_such_option=1)


def test_hit_of_zero_tokens_is_no_hit() -> None:
    fleet = _Fleet(_policy(c_hit=0.2), [0.5, 1.0, 2.0])
    _drive(fleet, 200, rate=2.0)
    for tokens in (1.0, 700.0, 5000.0):
        scores = [
            fleet.policy.choose(Query(120.0, tokens, hits), fleet.states).scores for hits in ({}, {0: 0.0, 2: 0.0})
        ]
        assert scores[0] == scores[1]


@pytest.mark.parametrize(("rate", "lessons"), [(20.0, 1000), (500.0, 120)])
def test_only_some_of_very_many_outcomes_are_learned_from(rate: float, lessons: int) -> None:
    """At most fifty a second and replica, and twenty at once. An ordinary rate is learned from completely."""
    policy, states = _policy(), _states(1)
    now = 1000.0
    for _ in range(40):  # until the fleet's speed is known
        ticket = policy.routed(Query(now, 1000, {}), policy.choose(Query(now, 1000, {}), states))
        policy.first_token(ticket, now + 0.1)
        now += 1.0
    known = policy._replicas[0].ttft.updates
    for _ in range(1000):
        query = Query(now, 1000, {})
        policy.first_token(policy.routed(query, policy.choose(query, states)), now)
        now += 1.0 / rate
    assert policy._replicas[0].ttft.updates - known == pytest.approx(lessons, abs=2)


def test_owner_is_chosen_also_when_hours_have_passed() -> None:
    policy, states = _policy(), _states(4)
    for second in range(0, 11_000, 60):
        query = Query(float(second), 1000, {}, [second])
        policy.finished(policy.routed(query, policy.choose(query, states)), second + 0.2, 0.0)
        owner = second // 60 % 4
        assert policy.choose(Query(second + 30.0, 4000, {owner: 3900.0}, [-1]), states).slot == owner
