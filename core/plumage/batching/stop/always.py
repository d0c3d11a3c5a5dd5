"""Order only: every candidate is added, the tree alone decides who comes next. The learned policies must beat it."""

from __future__ import annotations

from plumage.batching.interface import BatchState, Decision, StepOutcome

__all__ = ["Always"]


class Always:
    """ADD, always."""

    def decide(self, state: BatchState) -> Decision:
        return Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
