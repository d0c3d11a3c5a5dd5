"""What the learning policies share: they choose once a state and trial, and learn when the trial ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop.bins import Bin, discretise
from plumage.batching.stop.reward import DecodeReward
from plumage.batching.stop.trial import Trial

__all__ = ["TrialLearner"]


class TrialLearner(ABC):
    """A `StopPolicy` but for what it knows. `_reward.scale`: tokens/s, the best step lately."""

    def __init__(self) -> None:
        self._reward = DecodeReward()
        self._trial = Trial()

    def decide(self, state: BatchState) -> Decision:
        if not state.at_stake:
            return Decision.ADD
        seen = discretise(state)
        action = self._trial.choice(seen)
        if action is None:
            action = self._choose(seen)
            self._trial.hold(seen, action)
        return action

    def observe(self, outcome: StepOutcome) -> None:
        reward = self._reward.reward(outcome)
        if reward is None:
            return
        tokens = outcome.decode_tokens
        if self._trial.step(tokens, tokens / reward, outcome.finished, self._best()):
            self._learn(list(self._trial.end()))

    @abstractmethod
    def _choose(self, state: Bin) -> Decision:
        """What to do in `state` throughout this trial."""

    @abstractmethod
    def _learn(self, credits: Sequence[tuple[Bin, Decision, float]]) -> None:
        """A trial ended: each state it came to, in order, the choice there, and the tokens/s that followed."""

    @abstractmethod
    def _best(self) -> float:
        """The highest throughput known, in tokens/s."""
