"""How much work in requests without a first token a replica may have."""

from __future__ import annotations

import pytest

from plumage.queueing import StartWindow
from plumage.queueing.start_window import LEAST, REQUEST


def room(window: StartWindow, now: float, seconds: float = 0.5) -> int:
    return next(waiting for waiting in range(10_000) if not window.has_room(waiting, waiting, now, seconds))


def test_replica_that_started_nothing_may_have_the_least() -> None:
    assert room(StartWindow(), 0.0) == LEAST


def test_room_is_the_starts_of_the_last_seconds() -> None:
    window = StartWindow()
    for number in range(400):
        window.started(1, 0.1, number / 100, 0.5)  # a hundred each second
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
            window.started(1, 0.1, now, 0.5)
    assert rounds[0] == LEAST
    assert rounds[-1] > 100


@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_wait_in_the_engine_approaches_the_wanted_seconds(rate: float) -> None:
    """An engine starts `rate` requests a second, and the router sends whenever there is room."""
    window, queue, now, waits = StartWindow(), [], 0.0, []
    for _ in range(int(20 * rate)):
        while window.has_room(len(queue), len(queue), now, 0.5):
            queue.append(now)
        now += 1 / rate
        waits.append(now - queue.pop(0))
        window.started(1, 0.1, now, 0.5)
    settled = waits[len(waits) // 2 :]
    assert max(settled) <= 0.6
    assert min(settled) >= 0.3


def test_cached_requests_make_no_room_for_as_many_new_prompts() -> None:
    """20 cached requests a second, then new prompts of 2,000 tokens: the engine computes 6,000 tokens a second."""
    window = StartWindow()
    for number in range(100):
        window.started(REQUEST, 0.1, number / 20, 0.5)
    assert not window.has_room(LEAST, LEAST * 2_000, 5.0, 0.5)
    for number in range(15):
        window.started(2_000, 0.4, 5 + number / 3, 0.5)
    assert window.has_room(LEAST, 2_500, 9.7, 0.5)
    assert not window.has_room(LEAST, LEAST * 2_000, 9.7, 0.5)


def test_long_prompt_does_not_open_the_window() -> None:
    """An engine computes 8,000 tokens a second. It gets one prompt of 32,000 tokens among prompts of 200."""
    window, queue, now, most = StartWindow(), [(0.0, 32_000.0)], 0.0, 0
    for _ in range(400):
        while window.has_room(len(queue), sum(work for _, work in queue), now, 0.5):
            queue.append((now, 200.0))
        most = max(most, len(queue))
        since, work = queue.pop(0)
        now += work / 8_000
        window.started(work, now - since, now, 0.5)
    assert most <= 0.6 * 8_000 / 200
