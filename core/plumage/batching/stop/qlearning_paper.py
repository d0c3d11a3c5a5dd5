"""The Q-learning agent of FEATHER §4.3.4 as printed (Alg. 7, lines 7 and 13).

    Q(s, a) ← Q(s, a) + α·[r + γ·max_a' Q(s', a') − Q(s, a)]

An episode begins with a new batch, and ends upon STOP or when nothing waits any more. The table is updated after each
episode. r is the observed throughput, and s' the next state. A random action is taken with probability ε, else the one
with the largest Q. ε decays from 1.0 to ε_min. State and reward: `paper.py`.

The paper leaves open, and is chosen here:

- The last decision of an episode has no next state, so its max term is 0.
- An episode also ends where the engine had no room for more, so with the step at the latest.
- Each decision of an episode is updated with the same r, in the order of the decisions. The cited Q-learning does so
  too (Watkins and Dayan 1992).
- A value that is not known is 0. Ties go to ADD. A random action is ADD or STOP with equal probability.
- The schedule of ε: a factor of 0.999 after each episode. It needs 3,000 batches to 0.05. The bandit, the only policy
  whose training the paper shows, explores for about 100 s (§5.3.5), which are as many steps of 33 ms.
- α = 0.1, γ = 0.9 and ε_min = 0.05, as for ours.

Ours adds (`qlearning.py`), beside what `paper.py` lists:

- Episodes are trials.
- r has the weight 1 − γ. STOP ends an episode and ADD does not, so here ADD is worth up to 1/(1 − γ) rewards.
- One draw an episode decides for all states with the same loss.
- A value is a plain mean until α takes over.
- An unseen action takes its value from states with the same loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage import defaults
from plumage.batching.bounds import within
from plumage.batching.interface import Decision
from plumage.batching.stop.paper import PaperLearner, State, Taken
from plumage.batching.stop.table import ACTIONS
from plumage.randomness import Randomness

__all__ = ["QLearningPaper"]


class QLearningPaper(PaperLearner):
    """The printed agent. values: Q by state and action. `rng` draws the exploration."""

    def __init__(
        self,
        rng: Randomness,
        *,
        alpha: float = float(defaults.LEARNING_RATE),
        gamma: float = float(defaults.DISCOUNT_FACTOR),
        epsilon: float = 1.0,
        min_epsilon: float = float(defaults.MINIMUM_EXPLORATION),
        decay: float = float(defaults.PAPER_EXPLORATION_DECAY),
    ) -> None:
        super().__init__()
        self.alpha, self.gamma = within("alpha", alpha, 1e-6, 1), within("gamma", gamma, 0, 1)
        self.epsilon, self.min_epsilon = within("epsilon", epsilon, 0, 1), within("min_epsilon", min_epsilon, 0, 1)
        self.decay = within("decay", decay, 0, 1)
        self.values: dict[tuple[State, Decision], float] = {}
        self._rng = rng

    def value(self, state: State, action: Decision) -> float:
        return self.values.get((state, action), 0.0)

    def _choose(self, state: State) -> Decision:
        if self._rng.random() < self.epsilon:
            return ACTIONS[int(self._rng.random() * len(ACTIONS))]
        return max(ACTIONS, key=lambda action: self.value(state, action))

    def _learn(self, taken: Sequence[Taken], throughput: float) -> None:
        for number, (state, action, ends) in enumerate(taken, 1):
            ahead = 0.0 if ends else max(self.value(taken[number].state, one) for one in ACTIONS)
            old = self.value(state, action)
            self.values[state, action] = old + self.alpha * (throughput + self.gamma * ahead - old)
            if ends:
                self.epsilon = max(self.min_epsilon, self.epsilon * self.decay)
