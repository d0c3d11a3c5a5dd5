"""How long requests are with engines until their first token."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from plumage.queueing import StartDelay


def test_expected_delay_holds_until_one_is_known() -> None:
    delay = StartDelay(0.5)
    assert delay.likely == 0.5
    delay.add(2.0)
    assert delay.likely >= 2.0


def test_equal_delays_are_the_estimate() -> None:
    delay = StartDelay(0.5)
    for _ in range(200):
        delay.add(0.25)
    assert delay.likely == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize("draw", [lambda rng: rng.expovariate(2.0), lambda rng: rng.uniform(0.1, 0.9)])
def test_most_delays_are_shorter(draw: Callable[[random.Random], float]) -> None:
    rng, delay, shorter = random.Random(7), StartDelay(0.5), 0
    for number in range(4000):
        seconds = draw(rng)
        if number >= 1000:
            shorter += seconds <= delay.likely
        delay.add(seconds)
    assert shorter / 3000 >= 0.9


def test_estimate_follows_engines_that_become_slower() -> None:
    delay = StartDelay(0.5)
    for _ in range(200):
        delay.add(0.1)
    for _ in range(64):
        delay.add(3.0)
    assert delay.likely == pytest.approx(3.0, rel=0.2)


def test_one_long_prompt_says_little_about_others() -> None:
    delay = StartDelay(0.5)
    for _ in range(200):
        delay.add(0.4)
    delay.add(30.0)
    assert delay.likely < 1.0


def test_engines_that_slow_down_are_noticed_within_ten_requests() -> None:
    delay = StartDelay(0.5)
    for _ in range(200):
        delay.add(0.4)
    for _ in range(10):
        delay.add(3.0)
    assert delay.likely > 3.0


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_engines_that_answered_at_once_and_slow_down_are_noticed(seconds: float) -> None:
    delay = StartDelay(0.5)
    for _ in range(500):
        delay.add(seconds)
    for _ in range(15):
        delay.add(3.0)
    assert delay.likely >= 2.0
