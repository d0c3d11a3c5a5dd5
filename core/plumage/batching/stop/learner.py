"""What the learning policies share. They choose, and learn once a choice can be judged (`credit.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from plumage import defaults
from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop.bins import Bin, discretise
from plumage.batching.stop.credit import make_credited
from plumage.batching.stop.reward import DecodeReward

__all__ = ["Learner"]


class Learner(ABC):
    """A `StopPolicy` without its table. credit: a `Credit` by name."""

    def __init__(self, credit: str = defaults.CREDIT) -> None:
        self.credit, self._credited = make_credited(credit)
        self._reward = DecodeReward()
        self._finished = 0  # requests that ended in steps without a throughput, as all do if a batch ends together

    def decide(self, state: BatchState) -> Decision:
        if not state.at_stake:
            return Decision.ADD
        seen = discretise(state)
        action = self._credited.choice(seen)
        if action is None:
            action = self._choose(seen)
            self._credited.hold(seen, action)
        return action

    def observe(self, outcome: StepOutcome) -> None:
        self._finished += outcome.finished
        reward = self._reward.reward(outcome)
        if reward is None:
            return
        tokens, finished = outcome.decode_tokens, self._finished
        self._finished = 0
        if self._credited.step(tokens, tokens / reward, finished, self._best(), outcome.steps):
            self._learn(list(self._credited.end()))

    @abstractmethod
    def _choose(self, state: Bin) -> Decision:
        """What to do in `state`: now, or throughout this trial."""

    @abstractmethod
    def _learn(self, credits: Sequence[tuple[Bin, Decision, float]]) -> None:
        """Learns from a trial or step that ended: its states in order, the choice in each, and the tokens/s that
        followed."""

    @abstractmethod
    def _best(self) -> float:
        """The highest throughput known, in tokens/s."""
