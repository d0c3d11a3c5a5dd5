"""A machine's clock may be set at any time."""

from __future__ import annotations

import pytest

from plumage_operator.manager import steady_clock


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_set_clock_changes_no_monotonic_time(jump: float) -> None:
    wall, monotonic = [1_800_000_000.0], [50.0]
    clock = steady_clock(lambda: wall[0], lambda: monotonic[0])
    assert clock() == wall[0]
    wall[0] += jump
    monotonic[0] += 15.0
    assert clock() == 1_800_000_015.0
