"""What routers report to each other of their requests, and how Lbgr counts it."""

from __future__ import annotations

import random

import pytest

from plumage.directory.sharing.work_exchange import ALL_EVERY, ROUTERS, SILENCE, WorkExchange
from plumage.routing import Lbgr
from plumage.routing.backlog import Backlog, Share
from plumage.routing.interface import Query, ReplicaState, Ticket
from plumage.routing.learned import Learned
from plumage.routing.others import Account, News, Others

SECONDS = 0.2  # for a thousand tokens, of the replica in these tests


def account(
    owed: float = 0.0, requests: int = 0, computed: float = 0.0, routed: float = 0.0, arrivals: int = 0
) -> Account:
    return Account(owed, requests, computed, routed, arrivals)


def test_sums_count_by_their_change_and_work_by_its_last_value() -> None:
    others = Others()
    assert others.take("a", 0, account(2.0, 1, 5.0, 7.0, 9)) == News(2.0, 1, 0.0, 0.0, 0), "before us"
    assert others.take("a", 0, account(3.0, 2, 6.0, 9.0, 11)) == News(3.0, 2, 1.0, 2.0, 2)
    assert others.take("b", 0, account(1.0, 1, 0.0, 1.0, 1)) == News(4.0, 3, 0.0, 0.0, 0)
    assert others.take("a", 1, account(8.0, 4, 0.0, 8.0, 4)) == News(8.0, 4, 0.0, 0.0, 0), "slots are apart"
    assert others.take("b", 0, None) == News(3.0, 2, 0.0, 0.0, 0)
    others.forget(0)
    assert others.take("c", 0, account()) == News(0.0, 0, 0.0, 0.0, 0)


def test_router_that_begins_again_is_a_new_one() -> None:
    others = Others()
    others.take("a", 0, account(0.0, 0, 50.0, 50.0, 50))
    assert others.take("a", 0, account(1.0, 1, 2.0, 3.0, 3)) == News(1.0, 1, 0.0, 0.0, 0)
    assert others.take("a", 0, account(0.0, 0, 3.0, 3.0, 3)) == News(0.0, 0, 1.0, 0.0, 0)


def test_work_of_two_routers_drains_as_one_queue() -> None:
    """Without it each part would fall by a second per second."""
    backlog = Backlog(SECONDS)
    backlog.add(Share(10.0), 0.0)
    backlog.hear(10.0, 1, 0.0, 0.0)
    done_at, behind = backlog.bounds()
    assert (done_at, behind) == (pytest.approx(4.0), pytest.approx(2.0))


def test_speed_is_that_of_all_requests() -> None:
    """Every second prompt is another router's. Its time is not taken for ours."""
    backlog, now = Backlog(2.0 * SECONDS), 0.0
    backlog.hear(1.0, 1, 0.0, 0.0)
    for _ in range(200):
        share = Share(1.0)
        backlog.add(share, now)
        now += SECONDS
        backlog.hear(1.0, 1, 1.0, now)
        now += SECONDS
        backlog.first_token(share, now)
    assert backlog.c_miss == pytest.approx(SECONDS, rel=0.05)


def test_others_on_an_idle_replica_start_its_clock() -> None:
    backlog = Backlog(SECONDS)
    backlog.hear(0.0, 0, 5.0, 100.0)  # came and went unheard: its time is unknown
    assert backlog.busy_seconds == 0.0
    backlog.hear(2.0, 1, 0.0, 200.0)
    assert backlog.bounds() == (pytest.approx(200.4), 0.0)
    assert backlog.hear(0.0, 0, 2.0, 200.4) == pytest.approx(0.4)
    assert backlog.bounds() == (0.0, 0.0)


class Mirror:
    def __init__(self) -> None:
        self.held: list[tuple[int, ...]] = []

    def hold_pending(self, chain: object, slot: int, now: float, ttl: float) -> None:
        self.held.append((slot,))


class Router:
    def __init__(self, name: str, *, cooperative: bool = True) -> None:
        self.policy = Lbgr(rng=random.Random(1))
        self.beside: tuple[object, ...] = ()
        self.seconds: dict[int, float] = {}
        self.cooperative, self.plain = cooperative, object()
        self.exchange = WorkExchange(name, Mirror(), lambda: self.seconds, self.policies)
        self.exchange.set_replicas({"x": 0, "y": 1})

    def policies(self) -> tuple[object, ...]:
        return (self.policy if self.cooperative else self.plain, *self.beside)

    def send(self, slot: int, tokens: float, now: float, *, stream: bool = True) -> Ticket:
        query = Query(now, tokens, {}, stream=stream)
        return self.policy.routed(query, self.policy.choose(query, [ReplicaState(slot)]))

    def report(self, other: Router, now: float) -> None:
        message = self.exchange.make(now)
        if message is not None:
            other.exchange.take(message, now)


def test_router_avoids_the_replica_to_which_another_one_sends() -> None:
    one, two = Router("one"), Router("two")
    one.send(0, 8000.0, 9.0)
    one.report(two, 9.0)
    for _ in range(2):
        one.send(0, 8000.0, 10.0)
    one.report(two, 10.0)
    states = [ReplicaState(0), ReplicaState(1)]
    scores = two.policy.choose(Query(10.0, 1000.0, {}), states).scores
    alone = one.policy.choose(Query(10.0, 1000.0, {}), states).scores
    assert scores[0] > 2.0 * scores[1]
    assert scores[0] == pytest.approx(alone[0], rel=0.5), "both know the same queue"


def test_message_is_repeated_and_silence_ends_it() -> None:
    one, two = Router("one"), Router("two")
    ticket = one.send(0, 8000.0, 10.0)
    one.report(two, 10.0)
    assert one.exchange.make(10.1) is None
    one.report(two, 10.0 + ALL_EVERY)
    backlog = two.policy._replicas[0].backlog
    assert (backlog.others_requests, backlog.others_owed) == (1, pytest.approx(8.0, rel=0.1))
    two.exchange.drop_silent(11.0 + SILENCE + 0.1)
    assert backlog.others_requests == 0
    one.policy.first_token(ticket, 14.5)
    one.report(two, 14.5)
    assert backlog.others_requests == 0


def test_policy_that_takes_no_accounts_gets_seconds() -> None:
    one, two, old = Router("one"), Router("two"), Router("old", cooperative=False)
    one.send(0, 8000.0, 10.0)
    one.seconds = {0: 3.0}
    message = one.exchange.make(10.0)
    assert message is not None
    for other in (two, old):
        other.exchange.take(message, 10.0)
    assert old.exchange.foreign(10.0) == {0: 3.0}
    assert two.exchange.foreign(10.0) == {}, "its policy counts the request itself"
    old.seconds = {1: 2.0}
    old.report(two, 10.0)
    assert two.exchange.foreign(10.0) == {1: 2.0}, "from a router that sends no accounts"


def test_answers_in_one_piece_of_others_give_no_speed() -> None:
    one, two = Router("one"), Router("two")
    now = 100.0
    for _ in range(30):
        ticket = one.send(0, 1000.0, now, stream=False)
        one.report(two, now)
        now += 5.0
        one.policy.finished(ticket, now, None)
        one.report(two, now)
    assert two.policy._replicas[0].backlog.computed == 0.0
    assert two.policy._replicas[0].backlog.c_miss == pytest.approx(two.policy.settings.c_miss)


def test_answers_in_one_piece_of_others_drain_by_the_clock() -> None:
    one, two = Router("one"), Router("two")
    for _ in range(20):
        one.send(0, 1000.0, 10.0, stream=False)
    one.report(two, 10.0)
    wanted = 20 * one.policy.settings.c_miss
    assert two.exchange.foreign(10.0)[0] == pytest.approx(wanted, rel=0.01)
    assert two.policy._replicas[0].backlog.others_requests == 0
    one.report(two, 10.0 + wanted / 2)
    assert two.exchange.foreign(10.0 + wanted / 2)[0] == pytest.approx(wanted / 2, rel=0.01)
    one.report(two, 11.0 + wanted)
    assert two.exchange.foreign(11.0 + wanted) == {}


def test_policy_beside_hears_the_same() -> None:
    one, two = Router("one"), Router("two")
    beside = Lbgr(rng=random.Random(2))
    two.beside = (beside,)
    one.send(0, 8000.0, 10.0)
    one.report(two, 10.0)
    assert beside._replicas[0].backlog.others_requests == two.policy._replicas[0].backlog.others_requests == 1


@pytest.mark.parametrize("cooperative", [True, False])
def test_router_that_dies_when_a_policy_beside_comes_leaves_nothing(cooperative: bool) -> None:
    one, two = Router("one"), Router("two", cooperative=cooperative)
    beside = Lbgr(rng=random.Random(2))
    one.send(0, 8000.0, 10.0)
    one.report(two, 10.0)
    two.beside = (beside,)
    one.report(two, 10.0 + ALL_EVERY)
    assert beside._replicas[0].backlog.others_requests == 1
    two.exchange.drop_silent(11.0 + SILENCE + 0.1)
    assert beside._replicas[0].backlog.others_requests == 0
    if cooperative:
        one.report(two, 20.0)
        two.beside = ()
        two.exchange.foreign(20.1)  # `one` is never heard again
        assert two.policy._replicas[0].backlog.others_requests == 0


def test_new_policy_has_seconds_until_it_hears_accounts() -> None:
    one, two = Router("one"), Router("two")
    one.send(0, 8000.0, 10.0)
    one.seconds = {0: 3.0}
    one.report(two, 10.0)
    assert two.exchange.foreign(10.1) == {}
    two.policy = Lbgr(rng=random.Random(2))
    assert two.exchange.foreign(10.1) == {0: pytest.approx(2.9)}
    one.report(two, 10.0 + ALL_EVERY)
    assert two.exchange.foreign(10.0 + ALL_EVERY) == {}
    assert two.policy._replicas[0].backlog.others_requests == 1


def test_router_that_heard_others_still_adopts_what_they_learned() -> None:
    one, two = Router("one"), Router("two")
    tickets = [one.send(0, 1000.0, 10.0 + number) for number in range(3)]
    one.report(two, 12.0)
    for number, ticket in enumerate(tickets):
        one.policy.first_token(ticket, 13.0 + number)
    one.report(two, 16.0)
    assert two.policy._replicas[0].backlog.computed > 0.0
    replica = one.policy._replicas[0]
    learned = Learned(0.5, 100.0, replica.ttft.weights, replica.latency.weights, 60)
    assert two.policy.adopt(0, learned, 16.0)


def test_number_of_other_routers_is_bounded() -> None:
    two = Router("two")
    for number in range(ROUTERS + 20):
        other = Router(f"other-{number}")
        other.send(0, 1000.0, 10.0)
        other.report(two, 10.0)
        two.exchange.drop_silent(10.0)
    assert two.policy._replicas[0].backlog.others_requests == ROUTERS
