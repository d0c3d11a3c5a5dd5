"""Whether promotions pay: the share of promoted blocks that a request found before they were evicted again.

HotPrefix promotes whenever decodes leave the link idle and measures no harm. On loads whose hot prefixes change faster
than they are promoted, or whose promoted blocks push one another out, each promotion costs a copy and a resident and
gives nothing. Then promotion rests, and tries again later, each time after a longer rest.
"""

from __future__ import annotations

from plumage.errors import ConfigurationError

__all__ = ["PromotionWorth"]

_LONGEST = 64
"""Rests grow to so many times the first one."""


class PromotionWorth:
    """least: share of the promoted blocks that must be used. window: blocks whose fate is known before it is judged.
    rest: turns without promotion after the first bad judgement; each further one in a row doubles it."""

    def __init__(self, *, least: float = 0.2, window: int = 256, rest: int = 64) -> None:
        if not 0 <= least <= 1 or window < 1 or rest < 1:
            raise ConfigurationError("promotion: least must be within 0 and 1, window and rest at least 1")
        self._least = least
        self._window = window
        self._first_rest = rest
        self._next_rest = rest
        self._resting = 0
        self._used = 0
        self._wasted = 0
        self.rests = 0

    @property
    def resting(self) -> bool:
        """Promotion is stopped for now."""
        return self._resting > 0

    def turn(self) -> bool:
        """It is time to promote; True when that is worth while. A turn that is rested counts as rested."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def settle(self, *, used: int = 0, wasted: int = 0) -> None:
        """So many promoted blocks were found by a request; so many were evicted without."""
        self._used += used
        self._wasted += wasted
        if self._used + self._wasted >= self._window:
            self._judge()

    def _judge(self) -> None:
        if self._used >= self._least * (self._used + self._wasted):
            self._next_rest = self._first_rest
        else:
            self.rests += 1
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST * self._first_rest)
        self._used = self._wasted = 0
