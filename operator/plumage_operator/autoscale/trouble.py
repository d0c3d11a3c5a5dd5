"""How often a pod that does not answer is asked again: less and less, up to every `SELDOM` seconds. Pure.

Kept with the pod's reports and forgotten with them: another pod that gets its address is another pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

__all__ = ["SELDOM", "Trouble"]

SELDOM: Final = 120.0
_FIRST_WAIT: Final = 15.0
_EARLY: Final = 4.0  # seconds; no answer takes three, and the round after fifteen must not be missed for that


@dataclass(slots=True)
class Trouble:
    """times: failures in a row. until: when it may be asked again, by the caller's clock."""

    times: int = 0
    until: float = -inf

    def failed(self, now: float) -> None:
        """now: when it failed, not when its round began: a round of many pods takes a while."""
        self.times += 1
        self.until = now + min(SELDOM, _FIRST_WAIT * 2 ** min(self.times - 1, 10)) - _EARLY

    def over(self) -> bool:
        """It answers; whether it did not before."""
        was, self.times, self.until = self.times > 0, 0, -inf
        return was
