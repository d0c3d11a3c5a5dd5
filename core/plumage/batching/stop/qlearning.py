"""The Q-learning agent of FEATHER §4.3.4. An episode is a trial (`trial.py`). Its steps are the states that it reached.

    Q(s, a) ← Q(s, a) + α·[(1 − γ)·r + γ·max_a' Q(s', a') − Q(s, a)]

For the last state of an episode it is α·[r − Q(s, a)]. r is the decode throughput (tokens/s, without prefill's share)
from the first use of the choice until the episode ends.

Departures from the paper:
- r covers the whole trial, as the bandit's does.
- r is weighted by (1 − γ), so each value is a throughput. In the paper's r + γ·max Q, STOP ends an episode and ADD does
  not. At γ = 0.9 an ADD would have to gain 11 % to be worth as much as a STOP.
- ε decays from 1.0 to `min_epsilon` with every episode. Exploration is drawn once an episode for all states with the
  same loss, because a single random ADD among many STOPs only does harm.
- An action that was not seen in a state has its value from the states with the same loss.

With `credit="Step"` an episode is the decisions that formed one step's batch, and r is that step's throughput. An
unknown value is 0. ε is drawn at each decision and decays with each step. Set its decay near 1. The states and the
question where a STOP can pay stay ours. `qlearning_paper.py` is the printed agent.

Choices and updates do not depend on the unit of r.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from plumage import defaults
from plumage.batching.bounds import within
from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin
from plumage.batching.stop.credit import Credit
from plumage.batching.stop.learner import Learner
from plumage.batching.stop.table import ACTIONS, ActionTable
from plumage.randomness import Randomness

__all__ = ["QLearning"]


class QLearning(Learner):
    """Tabular Q-learning. `rng` draws the exploration; everything else is determined."""

    def __init__(
        self,
        rng: Randomness,
        *,
        alpha: float = float(defaults.LEARNING_RATE),
        gamma: float = float(defaults.DISCOUNT_FACTOR),
        epsilon: float = 1.0,
        min_epsilon: float = float(defaults.MINIMUM_EXPLORATION),
        decay: float = float(defaults.EXPLORATION_DECAY),
        credit: str = defaults.CREDIT,
    ) -> None:
        super().__init__(credit)
        self.alpha, self.gamma = within("alpha", alpha, 1e-6, 1), within("gamma", gamma, 0, 1)
        self.epsilon, self.min_epsilon = within("epsilon", epsilon, 0, 1), within("min_epsilon", min_epsilon, 0, 1)
        self.decay = within("decay", decay, 0, 1)
        self._rng = rng
        self._values: dict[tuple[Bin, Decision], float] = {}
        self._visits = ActionTable()
        self._explored: dict[int, Decision | None] = {}  # by loss, in this episode; None: be greedy

    def value(self, state: Bin, action: Decision) -> float:
        return self._values.get((state, action), 0.0)

    def rows(self) -> Iterator[tuple[int, int, int, str, float, float]]:
        """(b, Δ, w, action, visits, visits·Q): counts add up and so do these, so tables merge like a bandit's."""
        for batch, loss, peers, name, visits, _ in self._visits.rows():
            yield batch, loss, peers, name, visits, visits * self.value((batch, loss, peers), Decision(name))

    def merge(self, rows: Iterable[tuple[int, int, int, str, float, float]]) -> None:
        """Average another agent's values in, weighted by visits."""
        other = ActionTable.from_rows(rows)
        for batch, loss, peers, name, visits, weighted in other.rows():
            state, action = (batch, loss, peers), Decision(name)
            own = self._visits.count(state, action)
            if own + visits > 0:
                self._values[state, action] = (own * self.value(state, action) + weighted) / (own + visits)
        self._visits.merge(other)

    def _choose(self, state: Bin) -> Decision:
        return self._explore(state) or max(ACTIONS, key=lambda action: self._expected(state, action))

    def _learn(self, credits: Sequence[tuple[Bin, Decision, float]]) -> None:
        following: Bin | None = None
        for state, action, reward in reversed(credits):
            self._update(state, action, reward, following)
            following = state
        self._explored.clear()
        self.epsilon = max(self.min_epsilon, self.epsilon * self.decay)

    def _best(self) -> float:
        return max(self._values.values(), default=0.0)

    def _explore(self, state: Bin) -> Decision | None:
        if self.credit is Credit.STEP:
            return self._draw()
        loss = state[1]
        if loss not in self._explored:
            self._explored[loss] = self._draw()
        return self._explored[loss]

    def _draw(self) -> Decision | None:
        explores = self._rng.random() < self.epsilon
        return ACTIONS[int(self._rng.random() * len(ACTIONS))] if explores else None

    def _expected(self, state: Bin, action: Decision) -> float:
        known = self._values.get((state, action))
        if known is not None or self.credit is Credit.STEP:
            return known or 0.0
        alike = [value for (one, taken), value in self._values.items() if taken is action and one[1] == state[1]]
        return sum(alike) / len(alike) if alike else 0.0

    def _update(self, state: Bin, action: Decision, reward: float, following: Bin | None) -> None:
        target = reward
        if following is not None:
            ahead = max(self.value(following, one) for one in ACTIONS)
            own = reward if self.credit is Credit.STEP else (1 - self.gamma) * reward
            target = own + self.gamma * ahead
        old = self.value(state, action)
        self._visits.credit(state, action, 0.0)
        self._values[state, action] = old + self._rate(state, action) * (target - old)

    def _rate(self, state: Bin, action: Decision) -> float:
        if self.credit is Credit.STEP:
            return self.alpha
        # A plain mean until α takes over: from 0, α alone would rank actions by how often they were tried.
        return max(self.alpha, 1.0 / self._visits.count(state, action))
