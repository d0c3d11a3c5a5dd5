"""The randomness that a pure decision takes as an argument, so that a run repeats by its seed."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Randomness"]


class Randomness(Protocol):
    """The part of `random.Random` that most policies use; the caller seeds it."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...
