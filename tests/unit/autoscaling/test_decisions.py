"""The autoscaler's decisions and their messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.autoscaling import free, pool, spec_of

from plumage.autoscaling import Autoscaler, Decision, PoolLoad

TOKENS = {"type": "TotalTokensPerSecond", "target": 1000}
FLIGHT = {"type": "RequestsInFlight", "target": 10}
KV = {"type": "KvCacheUsage", "targetPercent": 50}
TTFT = {"type": "TimeToFirstToken", "targetMilliseconds": 500}
WAIT = {"type": "QueueWait", "targetMilliseconds": 100}


def decide(load: PoolLoad, *metrics: dict[str, Any], now: float = 0.0, **spec: Any) -> Decision:
    """The second decision of a new autoscaler without rate limits and windows."""
    scaler, rules = Autoscaler(), spec_of(*metrics, **{"behavior": free(), **spec})
    scaler.decide(rules, load, now - 1)
    return scaler.decide(rules, load, now)


@pytest.mark.parametrize(
    ("metric", "above", "below"),
    [
        (TOKENS, pool([2000] * 4), pool([500] * 4)),
        (FLIGHT, pool([20] * 4), pool([5] * 4)),
        (FLIGHT, pool([5] * 4, queued=60), pool([4] * 4, queued=4)),
        (KV, pool([100] * 4), pool([25] * 4)),
        (TTFT, pool([1] * 4, ttft=1.0), pool([1] * 4, ttft=0.25)),
        (WAIT, pool([1] * 4, queue_wait=0.2), pool([1] * 4, queue_wait=0.05)),
    ],
)
def test_each_metric_scales_up_and_down(metric: dict[str, Any], above: PoolLoad, below: PoolLoad) -> None:
    assert decide(above, metric).replicas == 8
    assert decide(below, metric).replicas == 2


def test_largest_proposal_wins_and_is_reported_with_its_numbers() -> None:
    decision = decide(pool([1530] * 4, ttft=0.1), TOKENS, TTFT)
    assert decision.replicas == 7
    assert decision.reason == "ScaledUp"
    assert decision.message == "4 → 7 replicas: TotalTokensPerSecond 1,530 a replica, target 1,000, wants 7."
    status = decision.status("2026-01-01T00:00:00Z")
    assert [(one.type, one.current, one.proposed_replicas) for one in status.metrics] == [
        ("TotalTokensPerSecond", 1530, 7),
        ("TimeToFirstToken", 100, 1),
    ]
    assert status.wanted_replicas == 7


def test_output_and_total_tokens_are_two_metrics() -> None:
    load = pool([5000] * 2)
    load = replace(load, replicas=tuple(replace(one, output_tokens_per_second=100.0) for one in load.replicas))
    decision = decide(load, {"type": "OutputTokensPerSecond", "target": 50})
    assert decision.message == "2 → 4 replicas: OutputTokensPerSecond 100 a replica, target 50, wants 4."
    assert decide(load, TOKENS).replicas == 10


def test_missing_metrics_prevent_shrinking_and_allow_growth() -> None:
    silent = pool([None] * 4)
    held = decide(silent, TOKENS)
    assert (held.replicas, held.reason) == (4, "MetricMissing")
    assert held.message == "4 replicas, held: TotalTokensPerSecond missing: none of 4 ready replicas reported it."
    assert decide(pool([100] * 4), TOKENS, TTFT).reason == "MetricMissing"  # TTFT is missing
    assert decide(pool([2000] * 4), TOKENS, TTFT).replicas == 8


def test_stale_figures_count_as_missing() -> None:
    load = pool([10] * 4, at=0.0, ttft=0.01)
    assert decide(load, TOKENS, TTFT, now=45.0).replicas == 1
    assert decide(load, TOKENS, TTFT, now=46.0).reason == "MetricMissing"


def test_requests_held_back_by_feather_are_no_overload() -> None:
    load = pool([20] * 4, queue_wait=0.5, ttft=1.0, held_back=0.45)
    held = replace(load, replicas=tuple(replace(one, held_back=12.0) for one in load.replicas))
    assert decide(held, FLIGHT).replicas == 4
    assert "48 held back on purpose not counted" in decide(held, FLIGHT).message
    assert decide(held, WAIT).replicas == 2  # 50 ms of 500
    assert decide(held, TTFT).replicas == 4  # 550 ms of 1000, within tolerance


def test_bounds_apply_at_once_with_any_metrics() -> None:
    slow = {"behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}}
    above = decide(pool([None] * 9), TOKENS, most=5, **slow)
    assert (above.replicas, above.message) == (5, "9 → 5 replicas: maxReplicas is 5.")
    below = decide(pool([None]), TOKENS, least=3)
    assert (below.replicas, below.message) == (3, "1 → 3 replicas: minReplicas is 3.")


def test_bounds_limit_the_proposal_of_metrics() -> None:
    up = decide(pool([9000] * 4), TOKENS, most=6)
    assert up.replicas == 6
    assert up.message.endswith("wants 36; maxReplicas bounds it.")
    top = decide(pool([9000] * 6), TOKENS, most=6)
    assert (top.replicas, top.reason) == (6, "AtMaximum")
    low = decide(pool([1] * 3), TOKENS, least=3)
    assert (low.replicas, low.reason) == (3, "AtMinimum")


def test_no_replica_is_removed_while_one_warms() -> None:
    load = pool([100] * 4, warming=1)
    held = decide(load, TOKENS)
    assert (held.replicas, held.reason) == (5, "ReplicaWarming")
    assert held.message.startswith("5 replicas: w0 must be warm before a replica is deleted. 5 → ")
    assert decide(load, TOKENS, most=3).reason == "ReplicaWarming"  # nor for a lower bound
    assert decide(pool([100] * 4, unready=1), TOKENS).replicas == 1  # a broken replica blocks nothing


def test_dry_run_advises_and_changes_nothing() -> None:
    decision = decide(pool([2000] * 4), TOKENS, dryRun=True)
    assert (decision.replicas, decision.advised, decision.reason) == (4, 8, "DryRun")
    assert not decision.changes
    assert decision.message.startswith("Dry run, nothing is changed: 4 → 8 replicas: ")


def test_rate_policies_count_past_changes_and_report_the_limit() -> None:
    scaler = Autoscaler()
    behavior = {"scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}}
    spec = spec_of(TOKENS, behavior=behavior)
    first = scaler.decide(spec, pool([5000] * 4), 0.0)
    assert first.replicas == 6
    scaler.scaled(4, 6, 0.0)
    second = scaler.decide(spec, pool([5000] * 6, at=15.0), 15.0)
    assert (second.replicas, second.reason) == (6, "RateLimited")
    assert second.message.endswith("wants 30; scaleUp allows 2 in 60 s.")
    assert scaler.decide(spec, pool([5000] * 6, at=61.0), 61.0).replicas == 8


def test_new_autoscaler_does_not_shrink_before_its_window_has_passed() -> None:
    scaler, spec = Autoscaler(), spec_of(TOKENS, behavior=free(down=300))
    for second in range(0, 300, 15):
        assert scaler.decide(spec, pool([100] * 4, at=second), float(second)).reason == "Stabilized"
    assert scaler.decide(spec, pool([100] * 4, at=301), 301.0).replicas == 1


def test_missing_figures_do_not_shrink_the_pool_afterwards() -> None:
    scaler, spec = Autoscaler(), spec_of(TOKENS, behavior=free(down=300))
    scaler.decide(spec, pool([1000] * 4), 0.0)
    for second in range(15, 900, 15):
        scaler.decide(spec, pool([None] * 4, at=second), float(second))
    decision = scaler.decide(spec, pool([100] * 4, at=900), 900.0)
    assert (decision.replicas, decision.reason) == (4, "Stabilized")


def idle(replicas: int, at: float, **more: Any) -> PoolLoad:
    return pool([0.0] * replicas, at=at, arrivals=0, in_flight=0, **more)


def test_pool_sleeps_after_its_idle_time_and_waiting_requests_wake_it() -> None:
    scaler, spec = Autoscaler(), spec_of(FLIGHT, least=0, idleSeconds=60, behavior=free())
    assert scaler.decide(spec, pool([1.0], at=0.0), 0.0).replicas == 1
    for second in (15.0, 30.0, 45.0):
        assert scaler.decide(spec, idle(1, second), second).replicas == 1
    asleep = scaler.decide(spec, idle(1, 60.0), 60.0)
    assert (asleep.replicas, asleep.reason) == (0, "FellAsleep")
    assert asleep.message == "1 → 0 replicas: no request for 60 s."
    scaler.scaled(1, 0, 60.0)
    quiet = scaler.decide(spec, idle(0, 75.0), 75.0)
    assert (quiet.replicas, quiet.reason) == (0, "Asleep")
    woken = scaler.decide(spec, pool([], at=80.0, waiting=20, in_flight=20), 80.0)
    assert (woken.replicas, woken.reason) == (2, "Woken")
    assert woken.message == "0 → 2 replicas: 20 requests wait."


def test_idle_pool_with_a_missing_metric_does_not_sleep() -> None:
    """Its engine still counts requests, so the metric that is there wants to grow."""
    scaler, spec = Autoscaler(), spec_of(TOKENS, FLIGHT, least=0, idleSeconds=60, behavior=free())
    for second in (0.0, 60.0):
        load = idle(1, second)
        load = replace(load, replicas=(replace(load.replicas[0], total_tokens_per_second=None, in_flight=27.0),))
        decision = scaler.decide(spec, load, second)
    assert (decision.replicas, decision.reason) == (3, "ScaledUp")


def test_request_delays_sleep() -> None:
    scaler, spec = Autoscaler(), spec_of(FLIGHT, least=0, idleSeconds=60, behavior=free())
    for second in range(0, 600, 15):
        load = idle(1, second) if second % 45 else pool([0.0], at=second, arrivals=1, in_flight=0)
        assert scaler.decide(spec, load, float(second)).replicas == 1


def test_waking_ignores_windows_and_policies_and_is_bounded() -> None:
    up = {"stabilizationWindowSeconds": 600, "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]}
    spec = spec_of(FLIGHT, least=0, most=3, behavior={"scaleUp": up})
    decision = Autoscaler().decide(spec, pool([], waiting=500, in_flight=500), 0.0)
    assert decision.replicas == 3


def test_sleeping_pool_with_silent_routers_stays_asleep_and_reports_it() -> None:
    decision = Autoscaler().decide(spec_of(FLIGHT, least=0), PoolLoad(wanted=0), 0.0)
    assert (decision.replicas, decision.reason) == (0, "MetricMissing")


def test_pool_that_may_not_sleep_returns_from_zero() -> None:
    assert Autoscaler().decide(spec_of(FLIGHT, least=2), PoolLoad(wanted=0), 0.0).replicas == 2


def test_last_replica_stays_while_requests_arrive() -> None:
    decision = decide(pool([0.0]), FLIGHT, least=0)
    assert (decision.replicas, decision.reason) == (1, "AtMinimum")
