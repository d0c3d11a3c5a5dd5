"""The rules of FEATHER §4.3.2, with the numbers of its authors' later upstream change (vllm#42134).

A candidate that costs no level of the tip is always added. Below the batch floor any candidate is. Otherwise the loss
must be within a threshold, relaxed when many waiting requests share the prefix that would remain. The floor starts at 1
and rises by one with each free admission, up to 10. So a batch that found its group is more selective later.

Ours: where a STOP cannot pay (`BatchState.at_stake`), the candidate is added. Otherwise a batch of one with no shared
prefix would stop at each candidate, run alone, and never raise the floor.
"""

from __future__ import annotations

from dataclasses import dataclass

from plumage import defaults
from plumage.batching.interface import BatchState, Decision, StepOutcome

__all__ = ["Heuristic"]


@dataclass(slots=True)
class Heuristic:
    """Thresholds in levels (chunks) and requests."""

    max_loss: int = defaults.LOSS_THRESHOLD
    relaxed_loss: int = defaults.RELAXED_LOSS_THRESHOLD
    many_peers: int = defaults.RELAXED_PEERS
    floor: int = 1
    max_floor: int = defaults.MAX_BATCH_FLOOR

    def decide(self, state: BatchState) -> Decision:
        if state.loss == 0:
            self.floor = min(self.floor + 1, self.max_floor)
            return Decision.ADD
        if state.batch < self.floor or not state.at_stake:
            return Decision.ADD
        tolerated = self.relaxed_loss if state.peers >= self.many_peers else self.max_loss
        return Decision.ADD if state.loss <= tolerated else Decision.STOP

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: the thresholds are fixed."""
