"""The switch of each plugin feature: it is disabled at its first failure, with a reason in log and metrics."""

from __future__ import annotations

import logging

import pytest

from plumage.errors import StateError
from plumage_engine.vllm.counters import MEANINGS, Counters
from plumage_engine.vllm.guard import Guard


def test_first_failure_disables_the_feature_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    counters, fallen = Counters(), []
    guard = Guard("eviction", counters, lambda: fallen.append(1))
    with caplog.at_level(logging.ERROR):
        guard.failed(KeyError("gone"))
        guard.failed(KeyError("again"))
    assert not guard.on
    assert fallen == [1]
    assert counters.get("failures", "eviction") == 2
    assert len(caplog.records) == 1
    assert "eviction failed and is off" in caplog.text
    assert "KeyError" in caplog.text
    assert guard.reason == "KeyError: 'gone'"


@pytest.mark.parametrize(
    "reasons",
    [
        ["this vLLM's Scheduler has no schedule", "this vLLM's Scheduler has no attribute running"],
        ["prefix caching is off, so requests have no hashes to be grouped by: --enable-prefix-caching"],
    ],
)
def test_obstacle_disables_a_feature_and_is_logged_unchanged(
    reasons: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard("feather", Counters())
    guard.refuse(reasons)
    assert not guard.on
    assert guard.reason == "; ".join(reasons)
    assert caplog.messages == [f"plumage: feather stays off: {guard.reason}"]


def test_every_counter_has_a_meaning() -> None:
    counters = Counters()
    for name in MEANINGS:
        counters.add(name, 2, label="x")
    assert {name: count for name, label, count in counters.rows()} == dict.fromkeys(MEANINGS, 2)
    with pytest.raises(StateError, match="give it a meaning"):
        counters.add("admision")
