"""The place where a test lets the operator die, which must be nowhere for all others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plumage_operator.cluster.crash_point import CRASHED, VARIABLE, CrashPoint

THREE = f"""
from plumage_operator.cluster.crash_point import CrashPoint
point = CrashPoint({{"{VARIABLE}": "2"}})
for number in (1, 2, 3):
    print(number, flush=True)
    point.passed()
"""


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}, {VARIABLE: "0"}])
def test_unset_it_does_nothing(environment: dict[str, str]) -> None:
    point = CrashPoint(environment)
    for _ in range(10):
        point.passed()


def test_it_ends_the_process_after_so_many_actions() -> None:
    done = subprocess.run([sys.executable, "-c", THREE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (CRASHED, ["1", "2"])
