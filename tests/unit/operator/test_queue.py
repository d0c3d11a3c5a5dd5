"""The queue: each key once at a time, later after a failure, earlier on request."""

from __future__ import annotations

import asyncio

import pytest

from plumage_operator.controller.queue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock, lambda: 1.0)


async def ready(queue: WorkQueue[str]) -> str | None:
    """The key that is due now; None without one."""
    try:
        return await asyncio.wait_for(queue.take(), 0.05)
    except TimeoutError:
        return None


async def test_key_waits_once(queue: WorkQueue[str]) -> None:
    for _ in range(3):
        queue.add("a")
    assert (await ready(queue), await ready(queue)) == ("a", None)


async def test_key_added_during_its_reconcile_is_reconciled_again(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await ready(queue) == "a"
    queue.add("a")
    assert await ready(queue) is None  # never two at a time
    queue.done("a")
    assert await ready(queue) == "a"


async def test_earlier_time_counts(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a", 60)
    queue.add("a", 5)
    queue.add("a", 30)
    assert await ready(queue) is None
    clock.now = 5
    assert await ready(queue) == "a"
    queue.done("a")
    clock.now = 100
    assert await ready(queue) is None


async def test_backoff_doubles_up_to_a_minute(queue: WorkQueue[str], clock: Clock) -> None:
    waits = []
    queue.add("a")
    for _ in range(10):
        assert await ready(queue) == "a"
        queue.done("a", failed=True)
        wait = -queue.overdue
        clock.now += wait
        waits.append(wait)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    queue.forget("a")


async def test_success_resets_the_backoff(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    for _ in range(3):
        await ready(queue)
        queue.done("a", failed=True)
        clock.now += -queue.overdue
    await ready(queue)
    queue.done("a")
    queue.add("a")
    await ready(queue)
    queue.done("a", failed=True)
    assert queue.overdue == -0.5


async def test_retry_after_of_a_server_is_kept(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    assert await ready(queue) == "a"
    queue.done("a", failed=True, after=30)
    clock.now = 29
    assert await ready(queue) is None
    clock.now = 30
    assert await ready(queue) == "a"


async def test_change_during_a_failed_reconcile_skips_the_backoff(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    for _ in range(8):  # a back-off of a minute by now
        await ready(queue)
        queue.done("a", failed=True)
        clock.now += -queue.overdue
    await ready(queue)
    queue.add("a", 0.25)  # the cause was fixed
    queue.done("a", failed=True)
    assert queue.overdue == -0.25
    clock.now += 0.25
    await ready(queue)
    queue.done("a", failed=True)
    assert queue.overdue == -60, "the server is asked once only"


async def test_retry_after_applies_to_changes_meanwhile(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    await ready(queue)
    queue.add("a", 5)
    queue.done("a", failed=True, after=30)
    assert queue.overdue == -30


async def test_overdue_time_of_the_next_key(queue: WorkQueue[str], clock: Clock) -> None:
    assert queue.oldest == 0
    queue.add("a")
    clock.now = 7
    assert (queue.oldest, queue.waiting) == (7, 1)
