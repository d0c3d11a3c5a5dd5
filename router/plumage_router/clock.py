"""The two clocks of a router: one for every duration and deadline (the mirror's too), one for what people read."""

from __future__ import annotations

import time

__all__ = ["monotonic", "wall"]

monotonic = time.monotonic
wall = time.time
