"""Seconds since 1970 that never jump: as the machine said when this was made, and on from there by its monotonic clock.

What decides when a pool is looked at next, and how old a figure is, goes by it. By the plain clock a correction of an
hour backwards would leave every pool alone for an hour, and one forwards would make every figure stale.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["steady_clock"]


def steady_clock(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """A clock for this process."""
    began = wall() - monotonic()
    return lambda: began + monotonic()
