"""The replicas that a figure asks for, against the cases of Kubernetes' own `replica_calculator_test.go`."""

from __future__ import annotations

import pytest

from plumage.autoscaling.formula import Tolerance, of_pool, per_replica

TENTH = Tolerance()


@pytest.mark.parametrize(
    ("values", "target", "wanted", "unknown", "unready", "replicas"),
    [
        pytest.param([300, 500, 700], 300, 3, 0, 0, 5, id="scale up"),
        pytest.param([500, 700], 300, 3, 0, 1, 4, id="scale up, one unready: less"),
        pytest.param([600], 300, 3, 0, 2, 3, id="scale up, two unready: direction would change, none"),
        pytest.param([20000, 10000, 30000], 15000, 3, 0, 0, 4, id="scale up, custom metric"),
        pytest.param([12000] * 5, 20000, 5, 0, 0, 3, id="scale down, custom metric"),
        pytest.param([100, 300, 500, 250, 250], 500, 5, 0, 0, 3, id="scale down"),
        pytest.param([300, 500, 250, 250], 500, 5, 0, 1, 3, id="scale down, one unready: not counted"),
        pytest.param([900, 1000, 1100], 1000, 3, 0, 0, 3, id="on target"),
        pytest.param([20000, 21000, 21000], 20000, 3, 0, 0, 3, id="within tolerance"),
        pytest.param([400, 95], 1000, 4, 2, 0, 3, id="unknown at target on the way down"),
        pytest.param([1000], 1000, 2, 1, 0, 2, id="unknown, at target"),
        pytest.param([1900], 1000, 2, 1, 0, 2, id="unknown at zero on the way up: no change"),
        pytest.param([600], 1000, 2, 1, 0, 2, id="unknown at target on the way down: rounds up"),
        pytest.param([450], 500, 3, 1, 1, 3, id="unknown and unready: no change"),
        pytest.param([2000], 500, 3, 1, 1, 4, id="unknown and unready: up"),
        pytest.param([100], 500, 3, 1, 1, 2, id="unknown and unready: down"),
    ],
)
def test_average_value_per_replica(
    values: list[float], target: float, wanted: int, unknown: int, unready: int, replicas: int
) -> None:
    assert per_replica(values, target, wanted=wanted, unknown=unknown, unready=unready, tolerance=TENTH) == replicas


@pytest.mark.parametrize(
    ("value", "target", "wanted", "ready", "replicas"),
    [
        pytest.param(8600, 4400, 3, 3, 6, id="scale up, external metric"),
        pytest.param(8600, 6000, 3, 3, 5, id="rounds up"),
        pytest.param(8600, 14334, 5, 5, 3, id="scale down"),
        pytest.param(8600, 8888, 3, 3, 3, id="within tolerance"),
        pytest.param(8600, 8600, 3, 3, 3, id="on target"),
        pytest.param(0, 500, 8, 8, 0, id="no replica"),
        pytest.param(20, 10, 3, 2, 4, id="ready ones only"),
    ],
)
def test_value_of_the_pool(value: float, target: float, wanted: int, ready: int, replicas: int) -> None:
    assert of_pool(value, target, wanted=wanted, ready=ready, tolerance=TENTH) == replicas


def test_figure_above_its_target_never_asks_for_fewer_replicas() -> None:
    # Kubernetes answers 3 here, fewer than the 4 of a moment ago.
    assert of_pool(1.5, 1.0, wanted=4, ready=2, tolerance=TENTH) == 4
    assert per_replica([1.5, 1.5], 1.0, wanted=4, unknown=0, unready=2, tolerance=TENTH) == 4


def test_floating_point_noise_adds_no_replica() -> None:
    assert of_pool(1.1, 1.0, wanted=10, ready=10, tolerance=Tolerance(0.0, 0.0)) == 11


def test_each_direction_has_its_own_tolerance() -> None:
    tolerance = Tolerance(up=0.0, down=0.5)
    assert of_pool(1.05, 1.0, wanted=10, ready=10, tolerance=tolerance) == 11
    assert of_pool(0.6, 1.0, wanted=10, ready=10, tolerance=tolerance) == 10
    assert of_pool(0.4, 1.0, wanted=10, ready=10, tolerance=tolerance) == 4
