"""The learning stop policies of FEATHER as printed: what the bandit and the Q-learning agent share (§4.3, Alg. 7).

`engine.feather.bandit.form: Paper` and `qLearning.form: Paper` choose them, as baselines for ours. Printed, and done:

- State (§4.3.1; Alg. 7 line 6): s = (b, Δ, w). b is the current batch, Δ the levels that the shared prefix loses, w the
  waiting requests at the new depth. b and w are in exponential bins, Δ is in coarse thresholds.
- Each question is a decision: ADD or STOP (Alg. 7 lines 3 to 9). No rule answers in place of the policy.
- Reward (§4.3.1; Alg. 7 lines 12 and 13): the decode throughput of the batch, in tokens/s. It is "executed for one
  decode iteration to obtain the observed throughput" (A.7). Each decision that formed the batch has this reward.

The paper leaves open, and is chosen here:

- The bins: 0, 1, 2 to 3, 4 to 7 and so on, without an end.
- The thresholds of Δ: 0, 5 and 7 levels, the only ones that the authors published (vllm#42134, for their heuristic).
- A step that also reads prompts is no decode iteration: §3.1 sets decode throughput apart from one "which includes the
  time taken to prefill". So the decisions wait for the next step that only decodes, and have its throughput. With
  prefill's share subtracted by an estimate, ADD got the estimate's error: on a modelled GPU without sharing the bandit
  had 0.65 of FCFS's tokens. The paper's has as many as FCFS (§5.3.7), and so has this form.

Ours adds (`learner.py`, `bins.py`, `trial.py`):

- The policy is not asked where a STOP cannot pay.
- Δ is relative to the shared prefix.
- A mixed batch has a state of its own, with the candidate's siblings.
- The bins end at 2¹⁰.
- A choice is kept for a trial and judged by all of it.
- Rewards also come from steps with prefill, less its share.
- Engines share their tables. A printed policy shares nothing, since its states are others.

The queue around both forms is ours (`base.py`, `stopping.py`):

- Preempted requests are first, and the ageing bound holds.
- An empty batch is never stopped.
- b counts running and admitted requests. w is without the candidate.

`candidateOrder: Paper` has the printed order of candidates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from plumage.batching.interface import BatchState, Decision, StepOutcome

__all__ = ["PaperLearner", "State", "Taken", "printed_state"]

State = tuple[int, int, int]
"""(b̂, Δ̂, ŵ)"""

_LOSSES: Final = (0, 5, 7)  # levels
_MOST: Final = 4096  # decisions that have no reward yet, on engines that always prefill; older ones are dropped


class Taken(NamedTuple):
    """A decision. ends: it is the last one of its batch."""

    state: State
    action: Decision
    ends: bool


def printed_state(state: BatchState) -> State:
    """b̂ and ŵ are the number of binary digits. Δ̂ is the number of thresholds below Δ."""
    loss = sum(state.loss > threshold for threshold in _LOSSES)
    return state.batch.bit_length(), loss, state.peers.bit_length()


class PaperLearner(ABC):
    """A `StopPolicy` without its table."""

    def __init__(self) -> None:
        self._taken: deque[Taken] = deque(maxlen=_MOST)

    def decide(self, state: BatchState) -> Decision:
        seen = printed_state(state)
        action = self._choose(seen)
        self._taken.append(Taken(seen, action, action is Decision.STOP))
        return action

    def observe(self, outcome: StepOutcome) -> None:
        if self._taken:
            self._taken[-1] = self._taken[-1]._replace(ends=True)
        if not self._taken or outcome.prefill_tokens or not outcome.decode_tokens or outcome.seconds <= 0:
            return
        throughput = outcome.decode_tokens / outcome.seconds
        if math.isfinite(throughput):
            taken = list(self._taken)
            self._taken.clear()
            self._learn(taken, throughput)

    @abstractmethod
    def _choose(self, state: State) -> Decision:
        """What to do in `state`."""

    @abstractmethod
    def _learn(self, taken: Sequence[Taken], throughput: float) -> None:
        """A step that only decoded had this throughput, in tokens/s. taken: the decisions before it, in order; the
        last one ends a batch."""
