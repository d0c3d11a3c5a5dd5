"""What a stop policy has learned: per state and action, how often and how well (tokens/s). Serialises, merges, forgets.

Tables of replicas on the same device and model add up, so a new replica starts trained. No text and no token id is in
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin
from plumage.errors import ConfigurationError

__all__ = ["ActionTable", "Row"]

ACTIONS = (Decision.ADD, Decision.STOP)
Row = tuple[int, int, int, str, float, float]
"""(b, Δ, w, action, count, summed reward)"""


class ActionTable:
    """(state, action) → (count, summed reward). At most |bins|² cells, so it is bounded by its keys."""

    def __init__(self) -> None:
        self._cells: dict[tuple[Bin, Decision], list[float]] = {}  # [count, summed reward]
        self.total = 0.0
        self._best: float | None = None  # None when it must be found again

    def credit(self, state: Bin, action: Decision, reward: float) -> None:
        cell = self._cells.setdefault((state, action), [0.0, 0.0])
        cell[0] += 1.0
        cell[1] += reward
        self.total += 1.0
        self._best = None

    def withdraw(self, state: Bin, action: Decision, reward: float) -> None:
        """Take back what `credit` added; a cell that nothing speaks for any more is dropped."""
        cell = self._cells[state, action]
        cell[0] -= 1.0
        cell[1] -= reward
        self.total -= 1.0
        self._best = None
        if cell[0] < 0.5:
            del self._cells[state, action]

    def count(self, state: Bin, action: Decision) -> float:
        cell = self._cells.get((state, action))
        return cell[0] if cell else 0.0

    def mean(self, state: Bin, action: Decision) -> float:
        """Mean reward; 0 where nothing is known."""
        cell = self._cells.get((state, action))
        return cell[1] / cell[0] if cell and cell[0] else 0.0

    def alike(self, state: Bin, action: Decision) -> tuple[float, float]:
        """(count, mean reward) of `action` in all states with this loss, whatever the batch and the peers."""
        count = reward = 0.0
        for (known, taken), cell in self._cells.items():
            if taken is action and known[1] == state[1]:
                count += cell[0]
                reward += cell[1]
        return count, reward / count if count else 0.0

    def best(self) -> float:
        """The highest mean reward of any cell. Asked at every step, while cells change once a trial."""
        if self._best is None:
            self._best = max((reward / count for count, reward in self._cells.values() if count), default=0.0)
        return self._best

    def discount(self, factor: float) -> None:
        """Everything known so far weighs `factor` of what it did: workloads drift."""
        for cell in self._cells.values():
            cell[0] *= factor
            cell[1] *= factor
        self.total *= factor
        self._best = None

    def merge(self, other: ActionTable) -> None:
        """Add what another table has learned."""
        for (state, action), (count, reward) in other._cells.items():
            cell = self._cells.setdefault((state, action), [0.0, 0.0])
            cell[0] += count
            cell[1] += reward
        self.total += other.total
        self._best = None

    def rows(self) -> Iterator[Row]:
        """One row a cell: the state's three bins, the action, count, summed reward; sorted, ready to serialise."""
        for (state, action), (count, reward) in sorted(
            self._cells.items(), key=lambda item: (item[0][0], item[0][1].value)
        ):
            yield (*state, action.value, count, reward)

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> ActionTable:
        """The table that `rows` came from; ConfigurationError for what no table of ours can have written."""
        table = cls()
        for row in rows:
            try:
                batch, loss, peers, action, count, reward = row
                decision = Decision(action)
            except ValueError as error:
                raise ConfigurationError(
                    f"a learned table's row must be (b, Δ, w, action, count, reward): {row!r}"
                ) from error
            if not (math.isfinite(count) and math.isfinite(reward) and count >= 0):
                raise ConfigurationError(f"a learned table's counts must be finite and not negative: {row!r}")
            table._cells[(batch, loss, peers), decision] = [count, reward]
            table.total += count
        return table
