"""The contextual bandit of FEATHER §4.3.3: upper confidence bounds on decode throughput, per state.

    UCB(s, a) = μ(s, a)/n(s, a) + c·√(ln S / n(s, a))

μ: summed reward of (state, action), n: its count, S: all counts. Unseen actions first, ties → ADD. Departures:
- the mean is taken relative to the best mean known, so c means the same on every device (decision 0138);
- c is the deviation of this choice's trials from their mean, and `exploration` until there are enough trials. As in
  UCB-V (Audibert, Munos and Szepesvári 2009), uncertain choices are explored more. ADD, as vLLM does it, has four
  times the bonus, so that one slow moment does not make STOP the usual choice (0150);
- a choice is held, and credited with what followed until the batch turned over (`trial.py`), not with one step;
- an action not seen in a state is judged by the states with the same loss; unseen there too, it is tried first;
- it decides only where a STOP can pay (`BatchState.at_stake`);
- old rewards lose weight, because workloads change: by a factor every `period` credits (discounted UCB), or by a
  window of the last credits (sliding-window UCB).

`credit="Step"` is closer to print: a decision is credited with the next step, and c is constant. An unseen action is
tried first in each state. The states and the question where a STOP can pay stay ours. `ucb_paper.py` is the printed
bandit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from plumage import defaults
from plumage.batching.bounds import within
from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin
from plumage.batching.stop.credit import Credit
from plumage.batching.stop.learner import Learner
from plumage.batching.stop.table import ACTIONS, ActionTable, Row, Seen

__all__ = ["Discounted", "Memory", "SlidingWindow", "Ucb"]

_DOUBT = {Decision.ADD: 4.0, Decision.STOP: 1.0}
_TIE = 1e-9  # relative; two choices that one trial credited differ by no more than rounding, and ties go to ADD


class Memory(Protocol):
    """How a bandit remembers and forgets."""

    table: ActionTable

    def credit(self, state: Bin, action: Decision, reward: float) -> None: ...


class Discounted:
    """Every `period` credits, all counts and rewards are multiplied by `factor`."""

    def __init__(
        self,
        factor: float = float(defaults.DISCOUNT),
        period: int = defaults.DISCOUNT_INTERVAL,
        table: ActionTable | None = None,
    ) -> None:
        self.table = table or ActionTable()
        self._factor = within("discount", factor, 0, 1)
        self._period = within("discount_interval", period, 1)
        self._since = 0

    def credit(self, state: Bin, action: Decision, reward: float) -> None:
        self.table.credit(state, action, reward)
        self._since += 1
        if self._since >= self._period:
            self._since = 0
            self.table.discount(self._factor)


class SlidingWindow:
    """Only the last `size` credits count."""

    def __init__(self, size: int = defaults.WINDOW) -> None:
        self.table = ActionTable()
        self._size = within("window", size, 1)
        self._last: deque[tuple[Bin, Decision, float]] = deque()

    def credit(self, state: Bin, action: Decision, reward: float) -> None:
        self.table.credit(state, action, reward)
        self._last.append((state, action, reward))
        if len(self._last) > self._size:
            self.table.withdraw(*self._last.popleft())


class Ucb(Learner):
    """The bandit. `exploration` is the paper's c, for mean rewards relative to the best one known: the
    deviation of one trial until enough trials have shown it."""

    def __init__(
        self,
        *,
        exploration: float = float(defaults.EXPLORATION),
        memory: Memory | None = None,
        credit: str = defaults.CREDIT,
    ) -> None:
        super().__init__(credit)
        self.exploration = within("exploration", exploration, 0)
        self.memory = memory or Discounted()

    @property
    def table(self) -> ActionTable:
        """The table, to save and to merge."""
        return self.memory.table

    def rows(self) -> Iterator[Row]:
        """The rows of the table, as `shared` passes them on."""
        return self.table.rows()

    def merge(self, rows: Iterable[Row]) -> None:
        """Adds the rows of others. ConfigurationError for invalid rows."""
        self.table.merge(ActionTable.from_rows(rows))

    def _choose(self, state: Bin) -> Decision:
        add, stop = (self._bound(state, action) for action in ACTIONS)
        return Decision.STOP if stop > add * (1 + _TIE) else Decision.ADD

    def _learn(self, credits: Sequence[tuple[Bin, Decision, float]]) -> None:
        for state, action, throughput in credits:
            self.memory.credit(state, action, throughput)

    def _best(self) -> float:
        return self.table.best()

    def _bound(self, state: Bin, action: Decision) -> float:
        table = self.memory.table
        seen = table.seen(state, action)
        if seen.times <= 0 and self.credit is Credit.TRIAL:
            seen = table.alike(state, action)
        if seen.times <= 0:
            return math.inf
        best = table.best() or 1.0
        explored = math.log(max(table.total, 1.0)) / seen.times
        return seen.mean / best + self._scatter(seen, action, best) * math.sqrt(explored)

    def _scatter(self, seen: Seen, action: Decision, best: float) -> float:
        """How far a trial is off the mean, relative to the best one: `exploration` counts as one more trial."""
        if self.credit is Credit.STEP or not self.exploration:
            return self.exploration
        doubt = _DOUBT[action] * self.exploration
        return math.sqrt((doubt * doubt + seen.scatter / (best * best)) / max(1.0, seen.times))
