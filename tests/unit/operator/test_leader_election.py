"""Which of several operators is the leader, with any clocks."""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable

import pytest

from plumage_operator import leader_election as lease_module
from plumage_operator.kube.errors import ConflictError, GoneError, UnavailableError
from plumage_operator.leader_election import (
    DEADLINE,
    DURATION,
    RETRY,
    LeaderElector,
    LeaseLostError,
    ObservedLease,
    can_acquire,
)


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.lease: dict = {}
        self.version = 0
        self.away = False
        self.conflicts = 0
        self.hangs: set[str] = set()
        self.answering: Callable[[str], None] = lambda _: None  # called while an answer is on its way

    async def request(self, method: str, path: str, *, body: dict | None = None) -> dict:
        if method in self.hangs:
            await asyncio.Event().wait()
        answer = self.answer(method, body)
        self.answering(method)
        return answer

    def answer(self, method: str, body: dict | None) -> dict:
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


def elector(leases: Leases, identity: str, time: Time) -> LeaderElector:
    return LeaderElector(leases, "plumage-system", "plumage-operator", identity, time, time.sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        (None, True),
        (ObservedLease("", "t", 0), True),
        (ObservedLease("me", "t", 0), True),
        (ObservedLease("other", "t", 100 - DURATION), False),
        (ObservedLease("other", "t", 99 - DURATION), True),
    ],
)
def test_lease_is_free_own_or_foreign(seen: ObservedLease | None, free: bool) -> None:
    assert can_acquire(seen, "me", 100) is free


async def test_second_operator_waits_until_the_first_stops_renewing() -> None:
    leases, time = Leases(), Time()
    first, second = elector(leases, "first", time), elector(leases, "second", time)
    await first.acquire()
    begun = time.now
    await second.acquire()
    assert DURATION < time.now - begun <= DURATION + 2 * RETRY
    assert leases.lease["spec"]["holderIdentity"] == "second"
    assert leases.lease["spec"]["leaseTransitions"] == 1
    with pytest.raises(LeaseLostError, match="second took the Lease"):
        await first.hold()


async def test_clock_an_hour_off_steals_no_lease() -> None:
    leases, time = Leases(), Time()
    await elector(leases, "first", time).acquire()
    leases.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    second = elector(leases, "second", time)
    assert not await second._try()


async def test_released_lease_is_taken_at_once() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    await first.release()
    begun = time.now
    await elector(leases, "second", time).acquire()
    assert time.now == begun


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_unanswered_release_does_not_block_the_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    monkeypatch.setattr(lease_module, "RELEASE_TIMEOUT", 0.1)
    caplog.set_level("INFO")
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    leases.hangs = {method}
    await asyncio.wait_for(first.release(), 60)
    assert "the Lease was not released: no answer" in caplog.text


async def test_holder_exits_before_another_may_acquire() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    leases.away = True
    begun = time.now
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert DEADLINE <= time.now - begun < DURATION


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_holder_without_answer_exits_before_another_may_acquire(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(lease_module, "DEADLINE", 0.5)
    monkeypatch.setattr(lease_module, "RETRY", 0.05)
    leases = Leases()
    first = LeaderElector(leases, "plumage-system", "plumage-operator", "first", clocks.monotonic)  # type: ignore[arg-type]
    await first.acquire()
    leases.hangs = {method}
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        await asyncio.wait_for(first.hold(), 60)


async def test_acquire_retries_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "DEADLINE", 0.2)
    monkeypatch.setattr(lease_module, "RETRY", 0.05)
    leases, tries = Leases(), 0
    leases.hangs = {"GET"}

    def alive() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            leases.hangs = set()

    first = LeaderElector(leases, "plumage-system", "plumage-operator", "first", clocks.monotonic)  # type: ignore[arg-type]
    await asyncio.wait_for(first.acquire(alive), 60)
    assert tries == 3


async def test_renewal_counts_from_its_sending() -> None:
    leases, time = Leases(), Time()
    first, second = elector(leases, "first", time), elector(leases, "second", time)
    await first.acquire()

    def slow(method: str) -> None:
        """It is written at once, and the answer takes long."""
        if method == "PUT":
            time.now += DEADLINE - RETRY / 2
            leases.away = True

    leases.answering = slow
    begun = time.now + RETRY
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert time.now - begun < DURATION
    leases.away, leases.answering = False, lambda _: None
    assert not await second._try()  # sees it, and counts from here


async def test_waiting_does_not_count_as_a_renewal() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    begun, leases.away = time.now, True
    time.now += DEADLINE - RETRY  # the first list takes so long
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert time.now - begun < DURATION


async def test_holder_renews_after_its_own_unacknowledged_write() -> None:
    leases, time = Leases(), Time()
    first = elector(leases, "first", time)
    await first.acquire()
    leases.conflicts = 1  # an answer was lost, and its write arrived after the next read

    def stop(method: str) -> None:
        if method == "PUT":
            raise asyncio.CancelledError

    leases.answering = stop
    with pytest.raises(asyncio.CancelledError):
        await first.hold()
    assert leases.conflicts == 0


async def test_loser_of_the_race_waits() -> None:
    leases, time = Leases(), Time()
    leases.conflicts = 1
    first = elector(leases, "first", time)
    assert not await first._try()
    assert await first._try()
