"""From a step's outcome to a reward: decode throughput without prefill's share.

A step with prefill is slow because of the prompt, not because of the batch, and would count against ADD. So prefill's
cost per token is learned: the slope of step time over prefill tokens, with more weight on recent steps. Its share is
subtracted. Rewards are tokens per second without scaling, so that old and new ones compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from plumage.batching.interface import StepOutcome

__all__ = ["DecodeReward"]

_LEAST_SHARE = 0.02  # least share of a step's time that counts as decoding, whatever the estimate is


@dataclass(slots=True)
class DecodeReward:
    """`blend`: weight of a new step in the regression."""

    blend: float = 0.05
    _steps: int = 0
    _tokens: float = 0.0  # means and moments of (prefill tokens, seconds)
    _seconds: float = 0.0
    _variance: float = 0.0
    _covariance: float = 0.0

    def reward(self, outcome: StepOutcome) -> float | None:
        """Decode tokens per second, or None if they are unknown. They are where the step decoded nothing, took no time,
        or had prefill of unknown cost."""
        self._regress(outcome.prefill_tokens, outcome.seconds / outcome.steps)
        if not outcome.decode_tokens or outcome.seconds <= 0:
            return None
        if outcome.prefill_tokens and self._variance <= 0:
            return None
        share = outcome.seconds - self.prefill_cost * outcome.prefill_tokens
        return outcome.decode_tokens / max(share, outcome.seconds * _LEAST_SHARE)

    @property
    def prefill_cost(self) -> float:
        """Seconds a prefill token; never negative."""
        return max(self._covariance / self._variance, 0.0) if self._variance > 0 else 0.0

    def _regress(self, tokens: float, seconds: float) -> None:
        self._steps += 1
        weight = max(self.blend, 1.0 / self._steps)
        from_tokens, from_seconds = tokens - self._tokens, seconds - self._seconds
        self._tokens += weight * from_tokens
        self._seconds += weight * from_seconds
        self._variance = (1 - weight) * (self._variance + weight * from_tokens * from_tokens)
        self._covariance = (1 - weight) * (self._covariance + weight * from_tokens * from_seconds)
