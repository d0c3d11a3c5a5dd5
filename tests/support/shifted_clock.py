"""`python -m support.shifted_clock SECONDS MODULE ARGUMENT…`: runs a program with a clock that is off."""

from __future__ import annotations

import runpy
import sys
import time


def shift(seconds: float) -> None:
    """Must run before any import that keeps a reference to `time.time`."""
    right = time.time
    time.time = lambda: right() + seconds
    time.time_ns = lambda: int((right() + seconds) * 1e9)


if __name__ == "__main__":
    shift(float(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
