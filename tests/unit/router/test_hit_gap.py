"""A lasting gap between predicted and actual hits is logged once; short gaps are not."""

from __future__ import annotations

import logging

import pytest

from plumage.settings.router_config import BreakerConfig
from plumage_router.directory.hit_gap import LASTING, LEAST, WINDOW, HitGapWatch
from plumage_router.fleet.breaker import Breaker
from plumage_router.fleet.replicas import Load, Member, Replica


def make(name: str = 'chat-"0"') -> Replica:
    replica = Replica(Member(name, "http://x:1"), 0, None, Breaker(BreakerConfig()), Load(0))  # type: ignore[arg-type]
    replica.cache_known = True
    return replica


def pass_windows(watch: HitGapWatch, replica: Replica, windows: int, error: float, start: int = 0) -> None:
    """Windows with an error of this size, each with just enough tokens."""
    for number in range(start, start + windows):
        watch.check([replica], number * WINDOW)
        replica.totals.compared_tokens += LEAST
        replica.totals.hit_error += int(error * LEAST)
    watch.check([replica], (start + windows) * WINDOW)


@pytest.mark.parametrize("error", [0.5, -0.5], ids=["predicted too much", "predicted too little"])
def test_lasting_gap_is_logged_once(error: float, caplog: pytest.LogCaptureFixture) -> None:
    watch, replica = HitGapWatch(), make()
    pass_windows(watch, replica, LASTING - 1, error)
    assert watch.lasting == []
    pass_windows(watch, replica, 3, error, start=LASTING - 1)
    assert watch.lasting == ['chat-"0"']
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{100 * error:.0f} % of the prompt tokens" in line
    assert r'plumage_router_hit_gap_lasting{replica="chat-\"0\""} 1' in list(watch.lines())
    assert rf'plumage_router_hit_gap_ratio{{replica="chat-\"0\""}} {error:g}' in list(watch.lines())
    pass_windows(watch, replica, 1, 0.0, start=LASTING + 2)
    assert watch.lasting == []
    assert r'plumage_router_hit_gap_lasting{replica="chat-\"0\""} 0' in list(watch.lines())


def test_small_and_short_gaps_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch, replica = HitGapWatch(), make()
    pass_windows(watch, replica, 2 * LASTING, 0.19)
    assert watch.ratios[replica.id] == pytest.approx(0.19, abs=0.001)
    for number in range(4):
        pass_windows(watch, replica, LASTING - 1, 0.9, start=(number + 3) * LASTING)
        pass_windows(watch, replica, 1, 0.0, start=(number + 4) * LASTING - 1)
    assert watch.lasting == []
    assert caplog.records == []


def test_unknown_cache_and_few_tokens_are_not_judged() -> None:
    watch, silent, idle = HitGapWatch(), make("silent"), make("idle")
    silent.cache_known = False
    for number in range(3 * LASTING):
        watch.check([silent, idle], number * WINDOW)
        silent.totals.compared_tokens += LEAST
        silent.totals.hit_error += LEAST
        idle.totals.compared_tokens += LEAST // 100
        idle.totals.hit_error += LEAST // 100
    assert watch.lasting == []
    assert watch.ratios == {"idle": 0.0}


def test_gap_is_forgotten_without_tokens() -> None:
    watch, replica = HitGapWatch(), make()
    pass_windows(watch, replica, LASTING, 0.5)
    for number in range(LASTING + 1, 2 * LASTING):
        watch.check([replica], number * WINDOW)
        assert watch.lasting == [replica.id], "a window may be longer"
        replica.totals.compared_tokens += LEAST // 10
    watch.check([replica], 2 * LASTING * WINDOW)
    assert watch.lasting == []
    assert watch.ratios == {replica.id: 0.0}
    pass_windows(watch, replica, LASTING - 1, 0.5, start=2 * LASTING)
    assert watch.lasting == [], "the count starts at zero again"
    pass_windows(watch, replica, 1, 0.5, start=3 * LASTING - 1)
    assert watch.lasting == [replica.id]


def test_log_has_the_real_duration(caplog: pytest.LogCaptureFixture) -> None:
    watch, replica = HitGapWatch(), make()
    for number in range(2 * LASTING):
        watch.check([replica], number * WINDOW)
        replica.totals.compared_tokens += LEAST // 2
        replica.totals.hit_error += LEAST // 2
    assert watch.lasting == []
    watch.check([replica], 2 * LASTING * WINDOW)
    assert watch.lasting == [replica.id]
    [record] = caplog.records
    assert f"for {2 * LASTING * WINDOW / 60:.0f} minutes" in record.getMessage()


def test_successor_starts_without_gap() -> None:
    watch, first = HitGapWatch(), make("a")
    pass_windows(watch, first, LASTING, 0.5)
    assert watch.lasting == ["a"]
    watch.check([make("a")], (LASTING + 1) * WINDOW)
    assert watch.lasting == []
