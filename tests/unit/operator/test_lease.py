"""Who of several operators is the active one, whatever the clocks say."""

from __future__ import annotations

import pytest

from plumage_operator.cluster.lease import DEADLINE, DURATION, RETRY, Elector, LeaseLostError, Seen, may_take
from plumage_operator.errors import ConflictError, GoneError, UnavailableError


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.lease: dict = {}
        self.version = 0
        self.away = False
        self.conflicts = 0

    async def request(self, method: str, path: str, *, body: dict | None = None) -> dict:
        if self.away:
            raise UnavailableError("away")
        if method == "GET":
            if not self.lease:
                raise GoneError("no Lease")
            return {**self.lease, "spec": dict(self.lease["spec"])}
        assert body is not None
        if self.conflicts or (method == "POST" and self.lease):
            self.conflicts -= 1
            raise ConflictError("somebody else wrote")
        self.version += 1
        self.lease = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": str(self.version)}}
        return self.lease


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 500:
            raise TimeoutError


def elector(leases: Leases, identity: str, time: Time) -> Elector:
    return Elector(leases, "plumage-system", "plumage-operator", identity, time, time.sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        (None, True),
        (Seen("", "t", 0), True),
        (Seen("me", "t", 0), True),
        (Seen("other", "t", 100 - DURATION), False),
        (Seen("other", "t", 99 - DURATION), True),
    ],
)
def test_a_lease_is_free_ours_or_left(seen: Seen | None, free: bool) -> None:
    assert may_take(seen, "me", 100) is free


async def test_the_second_waits_until_the_first_renews_no_more() -> None:
    leases, time = Leases(), Time()
    first, second = elector(leases, "first", time), elector(leases, "second", time)
    await first.acquire()
    begun = time.now
    await second.acquire()
    assert DURATION < time.now - begun <= DURATION + 2 * RETRY
    assert leases.lease["spec"]["holderIdentity"] == "second"
    assert leases.lease["spec"]["leaseTransitions"] == 1
    with pytest.raises(LeaseLostError, match="went to second"):
        await first.hold()


async def test_a_clock_that_is_an_hour_off_steals_nothing() -> None:
    leases, time = Leases(), Time()
    await elector(leases, "first", time).acquire()
    leases.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    second = elector(leases, "second", time)
    assert not await second._try()


async def test_a_released_lease_is_taken_at_once() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    await first.release()
    begun = time.now
    await elector(leases, "second", time).acquire()
    assert time.now == begun


async def test_who_can_not_renew_ends_before_another_may_begin() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    leases.away = True
    begun = time.now
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert DEADLINE < time.now - begun < DURATION


async def test_who_loses_the_race_waits() -> None:
    leases, time = Leases(), Time()
    leases.conflicts = 1
    first = elector(leases, "first", time)
    assert not await first._try()
    assert await first._try()
