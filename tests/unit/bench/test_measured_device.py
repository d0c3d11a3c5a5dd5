"""Devices whose prefill does not have LBGR's form: a table of measured steps, and waves with windows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from plumage.errors import ConfigurationError
from plumage_bench.routing.scenario import DEVICES, Scenario
from plumage_bench.virtual_time.measured_device import MeasuredDevice, StepTable
from plumage_bench.workloads import GspShape
from plumage_engine.simulator.engine.device import GPU, Device, StepShape

DOCUMENT = {
    "prefill": {"tokens": [100, 200], "context": [0, 1000], "seconds": [[0.1, 0.2], [0.2, 0.4]]},
    "decode": {"batch": [1, 4], "context": [100, 200], "seconds": [[0.01, 0.02], [0.04, 0.08]]},
}


def prefill(context: float, tokens: int, decodes: int = 0, each: int = 100) -> StepShape:
    """One prompt of `tokens` behind `context` cached ones, beside `decodes` requests."""
    total = decodes * each
    pairs = tokens * (context + tokens / 2)
    return StepShape(decodes, total, total, prefill_tokens=tokens, prefill_pairs=pairs)


def table_device() -> MeasuredDevice:
    device = MeasuredDevice.of(DOCUMENT, GPU, 200)
    object.__setattr__(device, "time_scale", 1.0)
    return device


def test_step_at_a_measured_point_takes_the_measured_time() -> None:
    device = table_device()
    assert device.seconds(prefill(1000, 200)) == pytest.approx(0.4)
    assert device.seconds(StepShape(4, 800, 800)) == pytest.approx(0.08)


def test_steps_are_linear_between_points_and_beyond_them() -> None:
    device = table_device()
    assert device.seconds(prefill(500, 150)) == pytest.approx(0.225)
    assert device.seconds(prefill(2000, 200)) == pytest.approx(0.6)
    assert device.seconds(StepShape(7, 700, 700)) == pytest.approx(0.07)


def test_mixed_step_pays_the_fixed_cost_once() -> None:
    assert table_device().seconds(prefill(0, 100, decodes=1)) == pytest.approx(0.1 + 0.01 - 0.01)


def test_prompt_longer_than_the_table_is_split() -> None:
    device = table_device()
    pieces = device.seconds(prefill(0, 200)) + device.seconds(prefill(200, 200))
    assert device.seconds(prefill(0, 400)) == pytest.approx(pieces - 0.01)


def test_table_is_scaled_to_a_cold_prompt_of_another_device() -> None:
    device = MeasuredDevice.of(DOCUMENT, GPU, 200)
    assert device.seconds(prefill(0, 200)) == pytest.approx(GPU.seconds(prefill(0, 200)))


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [([1], [[0.1, 0.2]]), ([2, 1], [[0.1, 0.2]] * 2), ([1, 2], [[0.1]] * 2), ([1, 2], [[0.0, 1.0]] * 2)],
)
def test_invalid_table_is_refused(rows: list[float], seconds: list[list[float]]) -> None:
    with pytest.raises(ConfigurationError, match="ascending"):
        StepTable(rows, [1, 2], seconds)


def bench_device(name: str) -> Device:
    return Scenario(GspShape(), 1.0, device=name).engines("Lru")[0].device


def test_every_device_takes_more_time_for_more() -> None:
    for name in DEVICES:
        device = bench_device(name)
        for context in (0, 1000, 5000):
            times = [device.seconds(prefill(context, tokens)) for tokens in (16, 600, 1100, 2048, 4096)]
            assert all(less <= more for less, more in pairwise(times)), name


def worst_error(device: Device) -> float:
    """The error of the best c and κ for a + c·m·(1 + κ·(h + m/2)), relative to the time, for prompts of 256 to 8,192
    tokens.
    """
    cases = [(h, m) for h in (0, 1024, 4096, 8192) for m in (256, 1000, 2048, 4096, 8192)]
    taken = np.array([device.seconds(prefill(h, m)) for h, m in cases])
    terms = np.array([[1.0, m, m * (h + m / 2)] for h, m in cases]) / taken[:, None]
    found, *_ = np.linalg.lstsq(terms, np.ones(len(cases)), rcond=None)
    return float(np.abs(terms @ found - 1.0).max())


@pytest.mark.parametrize(("name", "least"), [("windowed", 0.10), ("measured", 0.02)])
def test_lbgr_form_of_a_prefill_does_not_fit_the_new_devices(name: str, least: float) -> None:
    assert worst_error(bench_device(name)) > least


@pytest.mark.parametrize("name", ["stated", "quadratic"])
def test_lbgr_form_fits_the_old_devices_exactly(name: str) -> None:
    assert worst_error(bench_device(name)) < 1e-6
