"""Stalls are found from loads."""

from __future__ import annotations

from plumage_engine.agent.engine.engine_metrics import EngineLoad
from plumage_engine.agent.engine.stall_detection import StallWatch


def test_requests_without_a_step_are_a_stall() -> None:
    watch = StallWatch(10.0)
    busy = EngineLoad(running=1, steps=5)
    assert [watch.is_stalled(busy, 0, now) for now in (0.0, 9.0, 10.0, 30.0)] == [False, False, True, True]
    assert not watch.is_stalled(EngineLoad(running=1, steps=6), 0, 31.0)
    assert not watch.is_stalled(EngineLoad(running=1, steps=6), 1, 45.0), "an event is progress too"
    assert watch.is_stalled(EngineLoad(running=1, steps=6), 1, 55.0)


def test_idle_engine_is_not_stalled_and_the_wait_restarts() -> None:
    watch = StallWatch(10.0)
    idle = EngineLoad(running=0, waiting=3, steps=5)
    assert not watch.is_stalled(idle, 0, 0.0)
    assert not watch.is_stalled(idle, 0, 100.0)
    assert not watch.is_stalled(EngineLoad(running=1, steps=5), 0, 105.0)
    assert watch.is_stalled(EngineLoad(running=1, steps=5), 0, 110.0)
