"""The pauses between two checks of a condition that is not yet true."""

from __future__ import annotations

import time
from collections.abc import Iterator

__all__ = ["looks"]

_FIRST_S, _LONGEST_S, _PART = 0.2, 1.0, 0.1


def looks(within_s: float) -> Iterator[None]:
    """One value for each check, with growing pauses. Most checks start a kubectl, which takes up to a tenth of a second
    of CPU time that other tests need."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < within_s:
        yield
        time.sleep(min(_LONGEST_S, max(_FIRST_S, _PART * waited)))
