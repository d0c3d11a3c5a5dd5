"""STOP while the batch as it is decodes faster than a mixed one (the marginal value theorem, Charnov 1976).

When a group has nobody waiting any more, its requests still decode together. To fill their places with another group
mixes both. To leave the places empty makes the batch small, and so slower. The moment to go on is when the present rate
has fallen to the rate of mixed batches. Both are measured, in decode tokens a second without prefill's share: one over
the last steps, the other over all steps of batches whose requests share less than half of what they read. It is an
experiment of decision 0319, and no policy of the product.
"""

from __future__ import annotations

from typing import ClassVar, Final

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop.reward import DecodeReward

__all__ = ["Marginal"]

_MARGIN: Final = 0.02
_PRESENT: Final = 0.75  # factor on earlier steps in the present rate
_KEPT: Final = 0.999  # factor on earlier steps in the rate of mixed batches
_LEAST: Final = 32.0  # mixed steps before it stops at all
_LOOK: Final = 4  # steps for which it stops to see the rate of a batch that has become alike


class _Rate:
    """Tokens ÷ seconds of steps that lose weight."""

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._tokens = self._seconds = self.steps = 0.0

    def add(self, tokens: int, seconds: float, steps: int) -> None:
        kept = self._kept**steps
        self._tokens, self._seconds = kept * self._tokens + tokens, kept * self._seconds + seconds
        self.steps += steps

    @property
    def value(self) -> float:
        return self._tokens / self._seconds


class Marginal:
    """A `StopPolicy`. It stops only for requests that have siblings to wait with."""

    reads_shape: ClassVar = True

    def __init__(self) -> None:
        self._reward = DecodeReward()
        self._present, self._mixed = _Rate(_PRESENT), _Rate(_KEPT)
        self._depth = 0

    def decide(self, state: BatchState) -> Decision:
        if state.depth > self._depth:
            self._present = _Rate(_PRESENT)
        self._depth = state.depth
        if not state.at_stake or not state.siblings or self._mixed.steps < _LEAST:
            return Decision.ADD
        if self._present.steps < _LOOK:
            return Decision.STOP if state.depth and state.loss else Decision.ADD
        return Decision.STOP if self._present.value > (1.0 + _MARGIN) * self._mixed.value else Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        rate, shape = self._reward.reward(outcome), outcome.shape
        if rate is None or shape is None:
            return
        tokens, seconds = outcome.decode_tokens, outcome.decode_tokens / rate
        self._present.add(tokens, seconds, outcome.steps)
        if 2 * shape.tip * shape.requests < shape.levels:
            self._mixed.add(tokens, seconds, outcome.steps)
