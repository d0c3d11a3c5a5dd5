"""Routers that count a tenant's use together: the limit holds, nothing of it is lost, and outages are bounded."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from plumage.quotas import FRESH, STALE_SHARE, Ask, Limit, QuotaDecision, QuotaRefusal, Sharing, Taken, TenantUse

START = 1_700_000_040.0  # the beginning of a minute


@dataclass
class Directory:
    """The hashes of the server: (limit, window) → router → (number, when it was written)."""

    numbers: dict[tuple[Limit, int], dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    routers: int = 0


class Router:
    """One router: its use, and what it admitted."""

    def __init__(self, name: str, limits: dict[Limit, int], directory: Directory) -> None:
        self.name, self.directory = name, directory
        self.use = TenantUse(limits)
        self.taken: list[Taken] = []
        self.refusals: list[QuotaRefusal] = []
        directory.routers += 1

    @property
    def admitted(self) -> int:
        return len(self.taken)

    def sharing(self, at: float, answers: bool) -> Sharing:
        return Sharing(answers, self.directory.routers, START + at, at)

    def request(self, at: float, tokens: int = 0, *, shared: bool = True) -> QuotaDecision:
        found = self.use.take(tokens, self.sharing(at, shared))
        if isinstance(found, QuotaRefusal):
            self.refusals.append(found)
            return QuotaDecision.REFUSE
        taken, asks = found
        if asks:
            ask = Ask(taken, at, lambda refused: self._decided(ask, refused))
            self.use.asks.append(ask)
            return QuotaDecision.ASK
        self.taken.append(taken)
        return QuotaDecision.ADMIT

    def _decided(self, ask: Ask, refused: QuotaRefusal | None) -> None:
        if refused is None:
            self.taken.append(ask.taken)
        else:
            self.refusals.append(refused)

    def publish(self, at: float) -> None:
        sharing = self.sharing(at, True)
        self.use.roll(sharing.wall)
        for ask in self.use.asks:
            ask.published = True
        for meter in self.use.meters.values():
            known = self.directory.numbers[meter.kind, meter.window]
            known[self.name] = (meter.mine, sharing.wall)
            others = {name: found for name, found in known.items() if name != self.name}
            meter.read(others, meter.mine, sharing)

    def decide_asks(self, at: float, *, shared: bool = True) -> None:
        for ask, refused in self.use.decide_asks(self.sharing(at, shared), waiting_s=0.5):
            ask.decided(refused)

    def exchange(self, at: float) -> None:
        self.publish(at)
        self.decide_asks(at)


def together(count: int, limits: dict[Limit, int]) -> list[Router]:
    directory = Directory()
    return [Router(f"r{number}", limits, directory) for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [3, 50, 1200])
def test_routers_admit_the_limit_together(seed: int, limit: int) -> None:
    """Requests of twice the limit come to random routers, and the routers exchange at random times."""
    rng = random.Random(f"{seed} {limit}")
    routers = together(3, {Limit.REQUESTS_PER_MINUTE: limit})
    times = sorted(rng.uniform(0.0, 50.0) for _ in range(2 * limit))
    for at in times:
        router = rng.choice(routers) if rng.random() < 0.5 else routers[0]  # one has most requests
        router.request(at)
        if router.use.asks or rng.random() < 0.3:
            router.exchange(at + 0.005)
    for at in (55.0, 55.1):  # what is left is admitted
        for router in routers:
            for _ in range(limit):
                router.request(at)
                router.exchange(at + 0.01)
    total = sum(router.admitted for router in routers)
    assert limit <= total <= limit + 3 * max(1, limit * STALE_SHARE)
    assert total + sum(len(router.refusals) for router in routers) == 2 * limit + 6 * limit


def test_asked_request_never_exceeds_the_limit() -> None:
    """Two routers ask for the last request at the same moment: at most one of them gets it."""
    first, second = routers = together(2, {Limit.REQUESTS_PER_MINUTE: 1000})
    for number in range(999):
        router = routers[number % 2]
        router.request(number / 1000)
        router.exchange(number / 1000)
    first.exchange(1.0)
    second.exchange(1.0)
    assert [router.request(1.01) for router in routers] == [QuotaDecision.ASK] * 2
    for router in routers:
        router.exchange(1.02)
    assert sum(router.admitted for router in routers) in (999, 1000)
    first.exchange(1.03)
    second.exchange(1.03)
    first.request(1.04)
    first.exchange(1.05)
    assert sum(router.admitted for router in routers) == 1000


def test_request_within_the_share_does_not_wait() -> None:
    [router, other] = together(2, {Limit.REQUESTS_PER_MINUTE: 600})
    assert router.request(0.0) is QuotaDecision.ADMIT, "the first one, although nothing is known of the others"
    router.exchange(0.01)
    assert {router.request(0.02) for _ in range(90)} == {QuotaDecision.ADMIT}
    assert other.request(0.0) is QuotaDecision.ADMIT
    assert router.request(0.01 + 2 * FRESH) is QuotaDecision.ASK, "what the others did since then is unknown"


def test_window_begins_with_the_minute() -> None:
    router = Router("r", {Limit.REQUESTS_PER_MINUTE: 2}, Directory())
    assert [router.request(at, shared=False) for at in (0.0, 1.0, 59.9, 60.0)] == [
        QuotaDecision.ADMIT, QuotaDecision.ADMIT, QuotaDecision.REFUSE, QuotaDecision.ADMIT,
    ]  # fmt: skip
    router.request(60.0, shared=False)
    router.request(60.0, shared=False)
    router.request(119.5, shared=False)
    assert router.refusals == [QuotaRefusal(Limit.REQUESTS_PER_MINUTE, 2, seconds, False) for seconds in (1, 60, 1)]


def test_budget_of_a_day_outlives_the_minute() -> None:
    router = Router("r", {Limit.TOKENS_PER_DAY: 100, Limit.TOKENS_PER_MINUTE: 60}, Directory())
    assert router.request(0.0, 60, shared=False) is QuotaDecision.ADMIT
    assert router.request(1.0, 1, shared=False) is QuotaDecision.REFUSE
    assert router.request(60.0, 40, shared=False) is QuotaDecision.ADMIT
    assert router.request(120.0, 1, shared=False) is QuotaDecision.REFUSE
    assert router.request(121.0, 101, shared=False) is QuotaDecision.REFUSE
    limits = [(one.limit, one.seconds) for one in router.refusals]
    day_left = 86_400 - int(START + 120) % 86_400
    assert limits[1:] == [(Limit.TOKENS_PER_DAY, day_left), (Limit.TOKENS_PER_DAY, None)], "the longest wait of all"
    assert router.request(86_400.0, 1, shared=False) is QuotaDecision.ADMIT


def test_real_tokens_replace_the_estimate() -> None:
    router = Router("r", {Limit.TOKENS_PER_MINUTE: 1000}, Directory())
    meter = router.use.meters[Limit.TOKENS_PER_MINUTE]
    router.request(0.0, 900, shared=False)
    router.use.end(router.taken[0], 300, START + 2.0)
    assert meter.mine == 300
    router.request(3.0, 700, shared=False)
    router.use.end(router.taken[1], 2000, START + 61.0)  # the difference counts in the minute in which it is known
    assert meter.mine == 1300
    assert router.request(62.0, 1, shared=False) is QuotaDecision.REFUSE


def test_tokens_of_the_last_minute_are_not_free_in_this_one() -> None:
    router = Router("r", {Limit.TOKENS_PER_MINUTE: 1000}, Directory())
    router.request(50.0, 1000, shared=False)
    router.request(60.0, 900, shared=False)
    router.use.end(router.taken[0], 10, START + 61.0)
    assert router.use.meters[Limit.TOKENS_PER_MINUTE].mine == 900
    assert not router.use.idle
    router.use.end(router.taken[1], 900, START + 62.0)
    router.use.roll(START + 120.0)
    assert not router.use.idle, "the day's tokens"


def test_use_of_a_running_request_is_not_forgotten() -> None:
    router = Router("r", {Limit.TOKENS_PER_MINUTE: 1000}, Directory())
    router.request(50.0, 0, shared=False)
    router.use.roll(START + 60.0)
    assert not router.use.idle
    router.use.end(router.taken[0], 5000, START + 61.0)
    assert router.request(62.0, 1, shared=False) is QuotaDecision.REFUSE


def test_during_an_outage_each_router_has_an_equal_part() -> None:
    routers = together(3, {Limit.REQUESTS_PER_MINUTE: 90})
    for router in routers:
        router.request(0.0)
    for router in (*routers, *routers):
        router.exchange(0.01)
    for minute in range(5):  # the rest of this minute, and four more, in one of which the last router is idle
        before = sum(router.admitted for router in routers) if minute else 0
        active = routers[: 2 if minute == 2 else 3]
        for router in active:
            for _ in range(90):
                router.request(60.0 * minute + 1.0, shared=False)
        total = sum(router.admitted for router in routers) - before
        assert 30 * len(active) - 3 <= total <= 30 * len(active)
    assert {one.seconds for router in routers for one in router.refusals} == {1}
    assert all(one.by_share for router in routers for one in router.refusals)


def test_requests_in_flight_elsewhere_are_forgotten_in_a_long_outage() -> None:
    first, second = together(2, {Limit.CONCURRENT_REQUESTS: 8})
    for number in range(8):
        first.request(number / 10)
        first.exchange(number / 10 + 0.01)
    second.exchange(1.0)
    assert second.request(2.0, shared=False) is QuotaDecision.REFUSE
    assert second.request(20.0, shared=False) is QuotaDecision.ADMIT


def test_asks_are_decided_by_the_share_when_the_directory_goes_away() -> None:
    [router, other] = together(2, {Limit.REQUESTS_PER_MINUTE: 10})
    for each in (router, other):
        each.request(0.0)
    for each in (router, other, router):
        each.exchange(0.01)
    for _ in range(8):
        router.request(1.0)
    assert router.use.asks
    router.decide_asks(1.3, shared=False)
    assert router.use.asks == []
    assert router.admitted == 1 + 4, "half of the 8 that were left"
    assert len(router.refusals) == 4


def test_ended_requests_free_their_place() -> None:
    first, second = together(2, {Limit.CONCURRENT_REQUESTS: 2})
    first.request(0.0)
    first.exchange(0.01)
    first.request(0.02)
    first.exchange(0.03)
    assert first.admitted == 2
    second.exchange(0.04)
    assert second.request(0.05) is QuotaDecision.REFUSE
    first.use.end(first.taken[0], 0, START + 1.0)
    first.exchange(1.0)
    assert second.request(1.0) is QuotaDecision.ASK, "what it knows is old, so it asks"
    second.exchange(1.01)
    assert second.admitted == 1


def test_requests_of_a_dead_router_are_forgotten() -> None:
    first, second = together(2, {Limit.CONCURRENT_REQUESTS: 1})
    first.request(0.0)
    first.exchange(0.01)  # and then it is killed
    second.exchange(1.0)
    assert second.request(1.05) is QuotaDecision.REFUSE
    second.exchange(20.0)
    second.request(20.01)
    second.exchange(20.02)
    assert second.admitted == 1


def test_withdrawn_request_takes_nothing() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 1000, Limit.TOKENS_PER_MINUTE: 1000})
    router.request(0.0, 10)
    assert router.request(0.5, 10) is QuotaDecision.ASK
    [ask] = router.use.asks
    router.use.withdraw(ask)
    assert [router.use.meters[kind].mine for kind in router.use.limits] == [1, 10]
    router.use.withdraw(ask)  # it was decided meanwhile
    assert (router.use.asks, router.use.running) == ([], 1)


def test_ask_over_the_end_of_a_minute_is_counted_in_the_new_one() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 4})
    router.request(59.0)
    assert router.request(59.9) is QuotaDecision.ASK
    router.publish(59.95)
    for _ in range(2):
        router.request(60.01)
    router.decide_asks(60.02)
    assert len(router.use.asks) == 2
    assert router.use.meters[Limit.REQUESTS_PER_MINUTE].mine == 3
    router.exchange(60.03)
    assert (router.admitted, router.use.asks) == (4, [])
    assert router.use.meters[Limit.REQUESTS_PER_MINUTE].mine == 3


def test_late_ask_is_decided() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 4})
    router.request(0.0)
    assert router.request(0.5) is QuotaDecision.ASK
    router.decide_asks(0.9)
    assert router.use.asks
    router.decide_asks(1.1)
    assert (router.admitted, router.use.asks) == (2, [])


def test_other_limits_keep_what_was_used() -> None:
    router = Router("r", {Limit.REQUESTS_PER_MINUTE: 5}, Directory())
    for _ in range(5):
        router.request(0.0, shared=False)
    router.use.limits = {Limit.REQUESTS_PER_MINUTE: 6, Limit.CONCURRENT_REQUESTS: 7}
    assert router.request(1.0, shared=False) is QuotaDecision.ADMIT
    assert router.request(1.0, shared=False) is QuotaDecision.REFUSE
    router.use.limits = {Limit.CONCURRENT_REQUESTS: 7}
    assert router.request(1.0, shared=False) is QuotaDecision.ADMIT, "the six that run are counted"
    assert router.request(1.0, shared=False) is QuotaDecision.REFUSE
    for taken in router.taken:
        router.use.end(taken, 0, START + 2.0)
    assert router.use.running == router.use.meters[Limit.CONCURRENT_REQUESTS].mine == 0


def test_lost_server_forgets_no_number() -> None:
    first, second = together(2, {Limit.TOKENS_PER_DAY: 1000})
    first.request(0.0, 500)
    second.request(0.0, 500)
    for router in (first, second, first):
        router.exchange(0.01)
    first.directory.numbers.clear()
    assert first.request(2.0, 100) is QuotaDecision.ASK
    first.exchange(2.01)
    assert first.admitted == 1


def test_clock_that_is_put_back_begins_no_window() -> None:
    router = Router("r", {Limit.REQUESTS_PER_MINUTE: 2}, Directory())
    for _ in range(2):
        router.request(61.0, shared=False)
    assert router.request(59.0, shared=False) is QuotaDecision.REFUSE


def test_numbers_are_published_again_in_case_the_server_lost_them() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 5, Limit.CONCURRENT_REQUESTS: 5})
    router.request(0.0)
    assert len(router.use.due(router.sharing(0.0, True))) == 2
    router.exchange(0.01)
    assert router.use.due(router.sharing(1.0, True)) == []
    assert [meter.kind for meter in router.use.due(router.sharing(6.0, True))] == [Limit.CONCURRENT_REQUESTS]
