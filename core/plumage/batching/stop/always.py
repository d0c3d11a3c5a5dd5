"""Order only: every candidate is added, and the tree alone decides the order. A learned policy must serve more."""

from __future__ import annotations

from typing import ClassVar

from plumage.batching.interface import BatchState, Decision, StepOutcome

__all__ = ["Always"]


class Always:
    """ADD, always."""

    adds_all: ClassVar = True

    def decide(self, state: BatchState) -> Decision:
        return Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
