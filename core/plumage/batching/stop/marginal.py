"""STOP while the batch as it is decodes faster than the engine does in the mean (the marginal value theorem, Charnov 1976).

When a group has nobody waiting any more, its requests still decode together. To fill their places with another group
mixes both. To wait leaves places empty, and a smaller batch is slower. The best moment to go on is when the present rate
has fallen to the mean rate, whatever the device is. Both are measured, in decode tokens a second without prefill's share:
the present one over the last steps, the mean one over all steps at which requests waited.
"""

from __future__ import annotations

from typing import Final

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop.reward import DecodeReward

__all__ = ["Marginal"]

_MARGIN: Final = 0.02
_PRESENT: Final = 0.25  # weight of the last step in the present rate
_KEPT: Final = 0.999  # factor on the mean's tokens and seconds with each step
_LEAST: Final = 32.0  # steps before there is a mean


class Marginal:
    """A `StopPolicy`."""

    reads_shape = True
    LOOK = 4
    MIXED = True

    def __init__(self) -> None:
        self._reward = DecodeReward()
        self._now_tokens = self._now_seconds = self._seen = 0.0
        self._tokens = self._seconds = self._steps = 0.0
        self._depth = 0

    def decide(self, state: BatchState) -> Decision:
        if state.depth > self._depth:
            self._now_tokens = self._now_seconds = self._seen = 0.0
        self._depth = state.depth
        if not state.at_stake or not state.kin or self._steps < _LEAST:
            return Decision.ADD
        if self._seen < self.LOOK:
            return Decision.STOP if state.depth and state.loss else Decision.ADD
        present, mean = self._now_tokens / self._now_seconds, self._tokens / self._seconds
        return Decision.STOP if present > (1.0 + _MARGIN) * mean else Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        rate = self._reward.reward(outcome)
        if rate is None:
            return
        tokens, seconds, steps = outcome.decode_tokens, outcome.decode_tokens / rate, outcome.steps
        fade = (1.0 - _PRESENT) ** steps
        self._now_tokens = fade * self._now_tokens + tokens
        self._now_seconds = fade * self._now_seconds + seconds
        self._seen += steps
        shape = outcome.shape
        if self.MIXED and shape and shape.tip * shape.requests * 2 >= shape.levels:
            return
        kept = _KEPT**steps
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + seconds
        self._steps += steps
