"""Routers that count a tenant's use together: the limit holds, nothing of it is lost, and outages are bounded."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from plumage.quotas import FRESH, STALE_SHARE, Ask, Limit, TenantUse, Verdict

START = 1_700_000_040.0  # the beginning of a minute


@dataclass
class Directory:
    """The hashes of the server: (limit, window) → router → (number, when it was written)."""

    numbers: dict[tuple[Limit, int], dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))


class Router:
    """One router: its use, and what it admitted."""

    def __init__(self, name: str, limits: dict[Limit, int], directory: Directory | None) -> None:
        self.name, self.directory = name, directory
        self.use = TenantUse.of(limits)
        self.admitted = self.refused = 0

    def request(self, at: float, tokens: int = 0, *, shared: bool = True) -> Verdict:
        verdict, _ = self.use.take(tokens, START + at, at, shared=shared)
        if verdict is Verdict.ASK:
            self.use.asks.append(Ask(tokens, self._decided))
        elif verdict is Verdict.ADMIT:
            self.admitted += 1
        else:
            self.refused += 1
        return verdict

    def _decided(self, refused: Limit | None) -> None:
        if refused is None:
            self.admitted += 1
        else:
            self.refused += 1

    def exchange(self, at: float) -> None:
        wall = START + at
        self.use.roll(wall)
        assert self.directory is not None
        for ask in self.use.asks:
            ask.published = True
        for meter in self.use.meters.values():
            known = self.directory.numbers[meter.kind, meter.window]
            known[self.name] = (meter.mine, wall)
            meter.read({name: found for name, found in known.items() if name != self.name}, meter.mine, at, wall)
        self.use.settle(wall=wall, now=at, shared=True)


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
    assert total + sum(router.refused for router in routers) == 2 * limit + 6 * limit


def test_asked_request_never_exceeds_the_limit() -> None:
    """Two routers ask for the last request at the same moment: at most one of them gets it."""
    first, second = routers = together(2, {Limit.REQUESTS_PER_MINUTE: 1000})
    for number in range(999):
        router = routers[number % 2]
        router.request(number / 1000)
        router.exchange(number / 1000)
    first.exchange(1.0)
    second.exchange(1.0)
    assert [router.request(1.01) for router in routers] == [Verdict.ASK] * 2
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
    assert router.request(0.0) is Verdict.ADMIT, "the first one, although nothing is known of the others"
    router.exchange(0.01)
    assert {router.request(0.02) for _ in range(100)} == {Verdict.ADMIT}
    assert other.request(0.0) is Verdict.ADMIT
    assert router.request(0.01 + 2 * FRESH) is Verdict.ASK, "what the others did since then is unknown"


def test_window_begins_with_the_minute() -> None:
    router = Router("r", {Limit.REQUESTS_PER_MINUTE: 2}, None)
    assert [router.request(at, shared=False) for at in (0.0, 1.0, 59.9, 60.0)] == [
        Verdict.ADMIT, Verdict.ADMIT, Verdict.REFUSE, Verdict.ADMIT,
    ]  # fmt: skip
    meter = router.use.meters[Limit.REQUESTS_PER_MINUTE]
    assert meter.seconds_left(START + 60.0) == 60
    assert meter.seconds_left(START + 119.5) == 1


def test_budget_of_a_day_outlives_the_minute() -> None:
    router = Router("r", {Limit.TOKENS_PER_DAY: 100, Limit.TOKENS_PER_MINUTE: 60}, None)
    assert router.request(0.0, 60, shared=False) is Verdict.ADMIT
    assert router.request(1.0, 1, shared=False) is Verdict.REFUSE
    assert router.request(60.0, 40, shared=False) is Verdict.ADMIT
    assert router.use.take(1, START + 120.0, 120.0, shared=False) == (Verdict.REFUSE, Limit.TOKENS_PER_DAY)
    assert router.use.take(1, START + 86_400.0, 86_400.0, shared=False) == (Verdict.ADMIT, None)


def test_real_tokens_replace_the_estimate() -> None:
    router = Router("r", {Limit.TOKENS_PER_MINUTE: 1000}, None)
    meter = router.use.meters[Limit.TOKENS_PER_MINUTE]
    router.request(0.0, 900, shared=False)
    router.use.end(900, 300, START + 2.0)
    assert meter.mine == 300
    router.request(3.0, 700, shared=False)
    router.use.end(700, 2000, START + 61.0)  # the difference counts in the minute in which it is known
    assert meter.mine == 1300
    assert router.request(62.0, 1, shared=False) is Verdict.REFUSE


def test_during_an_outage_each_router_has_an_equal_part() -> None:
    routers = together(3, {Limit.REQUESTS_PER_MINUTE: 90})
    for router in routers:
        router.request(0.0)
    for _ in range(2):
        for router in routers:
            router.exchange(0.01)
    for at in (1.0, 61.0):  # the rest of this minute, and the next one
        for router in routers:
            for _ in range(90):
                router.request(at, shared=False)
        total = sum(router.admitted for router in routers)
        assert total <= (90 if at == 1.0 else 180)
        assert total >= (87 if at == 1.0 else 177)


def test_asks_are_decided_by_the_share_when_the_directory_goes_away() -> None:
    [router, other] = together(2, {Limit.REQUESTS_PER_MINUTE: 10})
    for each in (router, other):
        each.request(0.0)
    for each in (router, other, router):
        each.exchange(0.01)
    for _ in range(8):
        router.request(1.0)
    assert router.use.asks
    router.use.settle(wall=START + 1.3, now=1.3, shared=False)
    assert router.use.asks == []
    assert router.admitted == 1 + 4, "half of the 8 that were left"
    assert router.refused == 4


def test_ended_requests_free_their_place() -> None:
    first, second = together(2, {Limit.CONCURRENT_REQUESTS: 2})
    first.request(0.0)
    first.exchange(0.01)
    first.request(0.02)
    first.exchange(0.03)
    assert first.admitted == 2
    second.exchange(0.04)
    assert second.request(0.05) is Verdict.REFUSE
    first.use.end(0, 0, START + 1.0)
    first.exchange(1.0)
    assert second.request(1.0) is Verdict.ASK, "what it knows is old, so it asks"
    second.exchange(1.01)
    assert second.admitted == 1


def test_requests_of_a_dead_router_are_forgotten() -> None:
    first, second = together(2, {Limit.CONCURRENT_REQUESTS: 1})
    first.request(0.0)
    first.exchange(0.01)  # and then it is killed
    second.exchange(1.0)
    assert second.request(1.05) is Verdict.REFUSE
    second.exchange(20.0)
    second.request(20.01)
    second.exchange(20.02)
    assert second.admitted == 1


def test_withdrawn_request_takes_nothing() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 1000, Limit.TOKENS_PER_MINUTE: 1000})
    router.request(0.0, 10)
    assert router.request(0.5, 10) is Verdict.ASK
    router.use.withdraw(router.use.asks[0])
    assert [meter.mine for meter in router.use.meters.values()] == [1, 10]
    router.use.withdraw(Ask(10, lambda _: None))  # it was decided meanwhile
    assert router.use.asks == []


def test_other_limits_keep_what_was_used() -> None:
    router = Router("r", {Limit.REQUESTS_PER_MINUTE: 5}, None)
    for _ in range(5):
        router.request(0.0, shared=False)
    router.use.change({Limit.REQUESTS_PER_MINUTE: 6, Limit.CONCURRENT_REQUESTS: 9})
    assert [router.request(1.0, shared=False) for _ in range(2)] == [Verdict.ADMIT, Verdict.REFUSE]
    assert set(router.use.meters) == {Limit.REQUESTS_PER_MINUTE, Limit.CONCURRENT_REQUESTS}


def test_numbers_are_published_again_in_case_the_server_lost_them() -> None:
    [router] = together(1, {Limit.REQUESTS_PER_MINUTE: 5, Limit.CONCURRENT_REQUESTS: 5})
    router.request(0.0)
    assert len(router.use.due(START, 0.0)) == 2
    router.exchange(0.01)
    assert router.use.due(START + 1.0, 1.0) == []
    assert [meter.kind for meter in router.use.due(START + 6.0, 6.0)] == [Limit.CONCURRENT_REQUESTS]
