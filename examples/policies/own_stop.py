"""A stop policy of your own: a request with another prefix joins a small batch only."""

from __future__ import annotations

from plumage.batching import BatchState, Decision, StepOutcome


class StrangersInSmallBatches:
    """small: running requests below which any request may join."""

    def __init__(self, *, small: int = 8) -> None:
        self._small = small

    def decide(self, state: BatchState) -> Decision:
        """Whether the best candidate joins. loss: chunks of the batch's shared prefix that it would cost."""
        if state.loss == 0 or state.batch < self._small:
            return Decision.ADD
        return Decision.STOP

    def observe(self, outcome: StepOutcome) -> None:
        """Called after each step with its seconds and tokens; this policy learns nothing."""
