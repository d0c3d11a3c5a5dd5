"""How many requests without a first token a replica may have."""

from __future__ import annotations

import pytest

from plumage.queueing import StartWindow
from plumage.queueing.start_window import LEAST


def room(window: StartWindow, now: float, seconds: float = 0.5) -> int:
    return next(waiting for waiting in range(10_000) if not window.has_room(waiting, now, seconds))


def test_replica_that_started_nothing_may_have_the_least() -> None:
    assert room(StartWindow(), 0.0) == LEAST


def test_room_is_the_starts_of_the_last_seconds() -> None:
    window = StartWindow()
    for number in range(400):
        window.started(number / 100, 0.5)  # a hundred each second
    assert room(window, 4.0) == pytest.approx(50, abs=2)
    assert room(window, 4.5) == pytest.approx(50 / 2.718, abs=2), "they fade"
    assert room(window, 60.0) == LEAST


def test_idle_replica_takes_a_burst_in_a_few_rounds() -> None:
    """Each round of 20 ms starts all that wait."""
    window, now, rounds = StartWindow(), 100.0, []
    for _ in range(9):
        rounds.append(room(window, now))
        now += 0.02
        for _ in range(rounds[-1]):
            window.started(now, 0.5)
    assert rounds[0] == LEAST
    assert rounds[-1] > 100


@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_wait_in_the_engine_settles_at_the_wanted_seconds(rate: float) -> None:
    """An engine starts `rate` requests a second, and the router sends whenever there is room."""
    window, queue, now, waits = StartWindow(), [], 0.0, []
    for _ in range(int(20 * rate)):
        while window.has_room(len(queue), now, 0.5):
            queue.append(now)
        now += 1 / rate
        waits.append(now - queue.pop(0))
        window.started(now, 0.5)
    settled = waits[len(waits) // 2 :]
    assert max(settled) <= 0.6
    assert min(settled) >= 0.3
