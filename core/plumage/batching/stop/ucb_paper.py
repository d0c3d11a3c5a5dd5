"""The contextual bandit of FEATHER §4.3.3 as printed (Alg. 7, lines 7 and 13).

    UCB(ŝ, a) = μ(ŝ, a)/n(ŝ, a) + c·√(ln S / n(ŝ, a))

μ: cumulative reward, n: how often a was taken in ŝ, S: all decisions. The action with the largest bound is taken. Each
step of batch construction is an independent decision. State and reward: `paper.py`.

The paper leaves open, and is chosen here:

- c, for rewards in tokens/s. c = `exploration` × the highest mean reward of any state and action. So `exploration` is c
  for rewards from 0 to 1, and the choices do not depend on the device's speed. UCB1, which the paper cites for the
  formula, has c = √2 (Auer, Cesa-Bianchi and Fischer 2002).
- An action that was not taken in a state is taken first, as in UCB1. Ties go to ADD.
- n, μ and S change when the reward is known (Alg. 7 line 13), not at the decision.

Ours adds (`ucb.py`), beside what `paper.py` lists:

- c comes from the scatter of the trials.
- ADD has four times the bonus.
- An unseen action takes its value from states with the same loss.
- Old rewards lose weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from plumage import defaults
from plumage.batching.bounds import within
from plumage.batching.interface import Decision
from plumage.batching.stop.paper import PaperLearner, State, Taken

__all__ = ["UcbPaper"]

_TIE: Final = 1e-9  # relative; equal sums may differ by rounding


class UcbPaper(PaperLearner):
    """The printed bandit. cells: n and μ by state and action. decisions: S."""

    def __init__(self, *, exploration: float = float(defaults.PAPER_EXPLORATION)) -> None:
        super().__init__()
        self.exploration = within("exploration", exploration, 0)
        self.cells: dict[tuple[State, Decision], tuple[int, float]] = {}
        self.decisions = 0
        self._highest = 0.0  # mean of any cell, tokens/s

    def _choose(self, state: State) -> Decision:
        add, stop = self._bound(state, Decision.ADD), self._bound(state, Decision.STOP)
        return Decision.STOP if stop > add * (1 + _TIE) else Decision.ADD

    def _learn(self, taken: Sequence[Taken], throughput: float) -> None:
        for state, action, _ in taken:
            times, total = self.cells.get((state, action), (0, 0.0))
            self.cells[state, action] = times + 1, total + throughput
        self.decisions += len(taken)
        self._highest = max(total / times for times, total in self.cells.values())

    def _bound(self, state: State, action: Decision) -> float:
        times, total = self.cells.get((state, action), (0, 0.0))
        if not times:
            return math.inf
        return total / times + self.exploration * self._highest * math.sqrt(math.log(self.decisions) / times)
