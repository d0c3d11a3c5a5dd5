"""Python's garbage collector as a router wants it: rare, and never long."""

from __future__ import annotations

import gc

__all__ = ["settle"]

THRESHOLDS = (20_000, 20, 50)  # 0.2 to 0.7 µs an object; what is answered before is never looked at


def settle() -> None:
    """Once all that lives as long as the process is there: it need not be looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
