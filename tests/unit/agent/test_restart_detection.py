"""Restarts of an engine are found from its start time, or from counters that fell."""

from __future__ import annotations

import pytest

from plumage_engine.agent.engine.engine_metrics import EngineLoad
from plumage_engine.agent.engine.restart_detection import RestartWatch


@pytest.mark.parametrize(
    ("before", "after", "another"),
    [
        (EngineLoad(steps=9, started=100.0), EngineLoad(steps=9, started=100.0), False),
        (EngineLoad(steps=9, started=100.0), EngineLoad(steps=0, started=100.5), True),
        (EngineLoad(steps=0, started=100.0), EngineLoad(steps=9, started=100.5), True),
        (EngineLoad(steps=9), EngineLoad(steps=10), False),
    ],
    ids=["same", "restarted", "busy at once", "without start time, same"],
)
def test_restarted_engine_is_reported_once(before: EngineLoad, after: EngineLoad, another: bool) -> None:
    watch = RestartWatch()
    assert watch.has_started(before), "the first start is no restart"
    assert watch.has_started(after) is another
    assert not watch.has_started(after)


@pytest.mark.parametrize("started", [0.0, 100.0], ids=["unknown before", "unknown now"])
def test_fallen_counters_in_two_loads_mean_a_restart_where_no_start_time_is_known(started: float) -> None:
    watch = RestartWatch()
    torn, restarted = EngineLoad(), EngineLoad(steps=3)
    assert watch.has_started(EngineLoad(steps=9, started=started))
    for whole in (10, 11):
        assert not watch.has_started(torn), "a page without its counters"
        assert watch.doubtful
        assert not watch.has_started(EngineLoad(steps=whole, started=started)), "the same start as before"
        assert not watch.doubtful
    assert [watch.has_started(load) for load in (restarted, restarted, restarted)] == [False, True, False]
