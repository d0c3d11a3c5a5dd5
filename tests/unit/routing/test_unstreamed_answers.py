"""Unstreamed answers show no first token: what is learned from them, and what counts as waiting work meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from plumage.routing import Lbgr, Query, ReplicaState, Ticket

ANSWER = 6.0  # seconds from the first token to the last: many times the prefill


class Fleet:
    """Replicas that compute one prompt after another, each at its seconds per thousand tokens.
    Answers take `ANSWER`.
    """

    def __init__(self, speeds: list[float], streams: Callable[[int], bool]) -> None:
        self.policy = Lbgr(rng=random.Random(1))
        self.speeds, self.streams = speeds, streams
        self.states = [ReplicaState(slot) for slot in range(len(speeds))]
        self.free_at = [0.0] * len(speeds)
        self.events: list[tuple[float, int, bool, Ticket]] = []  # when, number, is it the end
        self.sent = 0

    def send(self, now: float, tokens: float, hits: dict[int, float] | None = None) -> Ticket:
        self.catch_up(now)
        query = Query(now, tokens, hits or {}, stream=self.streams(self.sent))
        ticket = self.policy.routed(query, self.policy.choose(query, self.states))
        slot, self.sent = ticket.slot, self.sent + 1
        miss = (tokens - query.hits.get(slot, 0.0)) / 1000.0
        self.free_at[slot] = max(self.free_at[slot], now) + self.speeds[slot] * miss
        if query.stream:
            heappush(self.events, (self.free_at[slot], 2 * self.sent, False, ticket))
        heappush(self.events, (self.free_at[slot] + ANSWER, 2 * self.sent + 1, True, ticket))
        return ticket

    def catch_up(self, now: float) -> None:
        while self.events and self.events[0][0] <= now:
            at, _, end, ticket = heappop(self.events)
            if end:
                self.policy.finished(ticket, at, None)
            else:
                self.policy.first_token(ticket, at)

    def drive(self, count: int, rate: float) -> tuple[Counter[int], float]:
        """Where the requests went, and when the last arrived."""
        rng, now, slots = random.Random(5), 0.0, Counter[int]()
        for _ in range(count):
            now += rng.expovariate(rate)
            slots[self.send(now, rng.choice([500.0, 1000.0, 2000.0, 4000.0])).slot] += 1
        return slots, now

    def c_miss(self) -> list[float]:
        return [replica.backlog.c_miss for replica in self.policy._replicas]


def test_speed_of_a_replica_is_learned_from_streams_only() -> None:
    fleet = Fleet([0.1, 0.4], lambda number: number % 2 == 0)
    fleet.drive(1500, rate=5.0)
    assert fleet.c_miss() == pytest.approx([0.1, 0.4], rel=0.2)


def test_rare_stream_counts_what_was_computed_before_it() -> None:
    fleet = Fleet([0.3], lambda number: number % 5 == 0)
    fleet.drive(1000, rate=1.5)
    assert fleet.c_miss() == pytest.approx([0.3], rel=0.3)


def test_time_of_answers_bounds_the_speed_where_nothing_streams() -> None:
    fleet = Fleet([0.15] * 2, lambda number: False)
    fleet.drive(1500, rate=5.0)
    assert all(0.15 <= c_miss < 0.6 for c_miss in fleet.c_miss())
    idle = Fleet([0.15] * 2, lambda number: False)
    idle.drive(300, rate=0.05)
    assert all(0.5 < c_miss <= 1.0 for c_miss in idle.c_miss()), "never above the setting"


def test_time_of_long_answers_is_no_waiting_work() -> None:
    fleet = Fleet([0.15], lambda number: False)
    _, now = fleet.drive(500, rate=2.0)
    first = fleet.send(now + 20.0, 4000.0)
    assert first.predicted_ttft is not None
    again = fleet.send(now + 20.0 + first.predicted_ttft, 4000.0)
    assert again.predicted_ttft is not None
    assert again.predicted_ttft < 1.7 * first.predicted_ttft, "until its end all of it would count"


def test_invisible_queue_does_not_grow_without_end() -> None:
    """One replica is three times slower than any figure shows. By the clock alone it had two minutes of queue."""
    fleet = Fleet([0.12, 0.36], lambda number: False)
    slots, now = fleet.drive(2000, rate=4.5)
    assert slots[0] > 2 * slots[1]
    assert fleet.free_at[1] - now < 50.0


def test_first_token_of_a_stream_shows_that_all_before_it_is_computed() -> None:
    policy, states = Lbgr(rng=random.Random(1)), [ReplicaState(0)]

    def send(now: float, stream: bool) -> Ticket:
        query = Query(now, 8000.0, {}, stream=stream)
        return policy.routed(query, policy.choose(query, states))

    unseen = [send(0.0, False) for _ in range(3)]
    seen = send(0.0, True)
    assert seen.predicted_ttft == pytest.approx(32.0)
    policy.first_token(seen, 4.0)
    assert policy._replicas[0].backlog.requests == 0
    after = send(4.0, True)
    assert after.predicted_ttft is not None
    assert after.predicted_ttft < 2.0, "four prompts took four seconds"
    for ticket in (*unseen, seen):
        policy.finished(ticket, 30.0, None)


@pytest.mark.parametrize("end", ["finished", "failed"])
@pytest.mark.parametrize("seed", range(5))
def test_no_work_is_left_when_all_requests_have_ended(seed: int, end: str) -> None:
    rng, policy, states = random.Random(seed), Lbgr(rng=random.Random(1)), [ReplicaState(0), ReplicaState(1)]
    tickets, now = [], 0.0
    for _ in range(200):
        now += rng.choice([0.01, 0.3, 5.0])
        query = Query(now, rng.choice([100.0, 4000.0]), {}, stream=rng.random() < 0.3)
        tickets.append(policy.routed(query, policy.choose(query, states)))
        if len(tickets) > 8:
            ticket = tickets.pop(rng.randrange(8))
            if ticket.state.share.seen and rng.random() < 0.5:
                policy.first_token(ticket, now)
            if end == "failed" and rng.random() < 0.5:
                policy.failed(ticket, now)
            else:
                policy.finished(ticket, now, None)
    for ticket in tickets:
        policy.failed(ticket, now) if end == "failed" else policy.finished(ticket, now, None)
    for replica in policy._replicas:
        assert replica.backlog.requests == 0
        assert replica.backlog.bounds() == (0.0, 0.0)
