"""Rate policies and windows, against the cases of Kubernetes' own `horizontal_test.go` and its documentation."""

from __future__ import annotations

from typing import Any

import pytest

from plumage.api.v1alpha1.autoscaling import BehaviorSpec
from plumage.autoscaling.behavior import History, Recommendation, ReplicaChange

NOW = 1000.0


def pods(value: int, seconds: int = 60) -> dict[str, Any]:
    return {"type": "Pods", "value": value, "periodSeconds": seconds}


def percent(value: int, seconds: int = 60) -> dict[str, Any]:
    return {"type": "Percent", "value": value, "periodSeconds": seconds}


def up(*policies: dict[str, Any], select: str = "Max") -> BehaviorSpec:
    return BehaviorSpec.model_validate({"scaleUp": {"policies": list(policies), "selectPolicy": select}})


def down(*policies: dict[str, Any], select: str = "Max") -> BehaviorSpec:
    return BehaviorSpec.model_validate({"scaleDown": {"policies": list(policies), "selectPolicy": select}})


def changes(*replicas: int, within: float = 120.0) -> History:
    """One change after another, evenly within the last seconds."""
    history = History()
    for number, count in enumerate(replicas):
        history.changed(ReplicaChange(NOW - within + within * (number + 0.5) / len(replicas), count))
    return history


@pytest.mark.parametrize(
    ("wanted", "recommended", "behavior", "replicas"),
    [
        (3, 1000, up(pods(1)), 4),
        (10, 500, up(pods(100), percent(100)), 110),
        (10, 500, up(pods(2), percent(100)), 20),
        (10, 50, up(pods(100)), 50),
        (10, 50, up(pods(30)), 40),
        (10, 50, up(percent(200)), 30),
        (1, 50, up(percent(10)), 2),
        (10, 500, up(pods(2), percent(100), select="Min"), 12),
        (10, 500, up(pods(2), select="Disabled"), 10),
        (1000, 3, down(pods(20)), 980),
        (100, 2, down(pods(20), percent(1)), 80),
        (100, 2, down(pods(2), percent(1)), 98),
        (10, 2, down(pods(5)), 5),
        (10, 5, down(percent(50)), 5),
        (3, 1, down(percent(10)), 2),
        (100, 2, down(pods(20), percent(1), select="Min"), 99),
        (100, 2, down(pods(20), select="Disabled"), 100),
    ],
)
def test_policies_without_earlier_changes(wanted: int, recommended: int, behavior: BehaviorSpec, replicas: int) -> None:
    assert History().within_rate(wanted, recommended, behavior, NOW).replicas == replicas


@pytest.mark.parametrize(
    ("history", "wanted", "recommended", "behavior", "replicas"),
    [
        pytest.param(changes(1, 5, 9), 100, 200, up(pods(300, 60)), 200, id="proposal within the limit"),
        pytest.param(
            changes(1, 5, 9), 100, 500, up(pods(5, 120)), 100, id="a tightened policy does not reverse a change"
        ),
        pytest.param(changes(1, 5, 9), 100, 500, up(pods(150, 120)), 235, id="additions in the period count"),
        pytest.param(
            changes(1, 5, 9), 100, 500, up(percent(200, 120)), 255, id="the percentage is of the size at its start"
        ),
        pytest.param(changes(4, -2), 6, 24, up(percent(300, 300)), 16, id="removals count as well"),
        pytest.param(changes(-1, -5, -9), 100, 50, down(pods(25, 120)), 90, id="downwards"),
        pytest.param(changes(-1, -5, -9), 100, 2, down(percent(50, 120)), 57, id="downwards, rounded down"),
        pytest.param(changes(-1, -5, -9), 100, 0, down(pods(5, 120)), 100, id="downwards, tightened"),
        pytest.param(changes(2, -4), 6, 1, down(pods(1, 300)), 6, id="downwards, changes in both directions before"),
        pytest.param(changes(9, within=60.0), 20, 100, up(pods(10, 30)), 30, id="older than the period"),
    ],
)
def test_policies_count_the_changes_of_their_period(
    history: History, wanted: int, recommended: int, behavior: BehaviorSpec, replicas: int
) -> None:
    assert history.within_rate(wanted, recommended, behavior, NOW).replicas == replicas


def test_documented_examples_of_both_policies() -> None:
    """From the documentation of `behavior`: from 80 pods down by 4 pods or 10 % a minute, whichever removes more."""
    behavior = down(pods(4), percent(10))
    history, wanted, seen = History(), 80, []
    for minute in range(6):
        now = NOW + 61 * minute
        bounded = history.within_rate(wanted, 10, behavior, now)
        history.changed(ReplicaChange(now, bounded.replicas - wanted))
        wanted = bounded.replicas
        seen.append(wanted)
    assert seen == [72, 64, 57, 51, 45, 40]  # 0.9 of each, rounded down; from 40 on, 4 pods remove more


def window(seconds_up: int, seconds_down: int) -> BehaviorSpec:
    return BehaviorSpec.model_validate(
        {
            "scaleUp": {"stabilizationWindowSeconds": seconds_up},
            "scaleDown": {"stabilizationWindowSeconds": seconds_down},
        }
    )


def history_of(*pairs: tuple[float, int]) -> History:
    history = History()
    for before, replicas in pairs:
        history.recommend(Recommendation(NOW - before, replicas))
    return history


@pytest.mark.parametrize(
    ("history", "wanted", "recommended", "behavior", "replicas"),
    [
        pytest.param(
            history_of((200, 10), (60, 4)), 10, 5, window(0, 300), 10, id="down: the largest proposal of the window"
        ),
        pytest.param(history_of((301, 10), (60, 6)), 10, 5, window(0, 300), 6, id="down: older proposals do not count"),
        pytest.param(
            history_of((60, 15)), 10, 5, window(0, 300), 10, id="down: a proposal above the present size holds it"
        ),
        pytest.param(
            history_of((60, 3)), 10, 20, window(120, 300), 10, id="up: the smallest proposal of the window holds it"
        ),
        pytest.param(history_of((60, 12)), 10, 20, window(120, 300), 12, id="up: the smallest proposal of the window"),
        pytest.param(history_of((60, 3)), 10, 20, window(0, 300), 20, id="up: no window"),
        pytest.param(
            history_of((300, 10)), 10, 5, window(0, 300), 5, id="down: the edge does not count, as in Kubernetes"
        ),
    ],
)
def test_windows(history: History, wanted: int, recommended: int, behavior: BehaviorSpec, replicas: int) -> None:
    bounded = history.stabilized(wanted, recommended, behavior, NOW)
    assert bounded.replicas == replicas
    assert (bounded.limit == "Stabilized") == (replicas != recommended)


def test_time_without_figures_counts_as_a_proposal_of_the_present_size_for_shrinking_only() -> None:
    history = History()
    history.recommend(Recommendation(NOW - 60, 10, held=True))
    assert history.stabilized(10, 2, window(0, 300), NOW).replicas == 10
    assert history.stabilized(10, 20, window(120, 300), NOW).replicas == 20


def test_history_is_bounded() -> None:
    history = History()
    for second in range(20_000):
        history.recommend(Recommendation(float(second), 1))
        history.changed(ReplicaChange(float(second), 1))
    assert len(history.recommendations) <= 4096
    assert len(history.changes) <= 4096
