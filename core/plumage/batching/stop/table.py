"""What a stop policy has learned: per state and action, how often it was chosen, and its tokens/s.

Tables of replicas on the same device and model add up, so a new replica starts trained. No text and no token id is in
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin
from plumage.errors import ConfigurationError

__all__ = ["ActionTable", "Row", "Seen"]

ACTIONS = (Decision.ADD, Decision.STOP)
Row = tuple[int, int, int, str, float, float]
"""(b, Δ, w, action, count, summed reward); of a fit see `StepTime.rows`."""


class Seen(NamedTuple):
    """How often, the mean reward, and the summed squared deviation from it."""

    times: float
    mean: float
    scatter: float


_NOTHING = Seen(0.0, 0.0, 0.0)


class ActionTable:
    """(state, action) → (count, summed reward), and how rewards scatter. At most |bins|² cells, so it is bounded by its
    keys. Scatter is what this replica saw: rows that are merged in bring none."""

    def __init__(self) -> None:
        self._cells: dict[
            tuple[Bin, Decision], list[float]
        ] = {}  # [count, summed reward, summed squared deviation from the mean]
        self.total = 0.0
        self._best: float | None = None  # None when it must be found again

    def credit(self, state: Bin, action: Decision, reward: float) -> None:
        cell = self._cells.setdefault((state, action), [0.0, 0.0, 0.0])
        off = reward - cell[1] / cell[0] if cell[0] else 0.0
        cell[0] += 1.0
        cell[1] += reward
        cell[2] += off * (reward - cell[1] / cell[0])
        self.total += 1.0
        self._best = None

    def withdraw(self, state: Bin, action: Decision, reward: float) -> None:
        """Takes back what `credit` added. A cell with a count of 0 is dropped."""
        cell = self._cells[state, action]
        off = reward - cell[1] / cell[0]
        cell[0] -= 1.0
        cell[1] -= reward
        self.total -= 1.0
        self._best = None
        if cell[0] < 0.5:
            del self._cells[state, action]
        else:
            cell[2] = max(0.0, cell[2] - off * (reward - cell[1] / cell[0]))

    def count(self, state: Bin, action: Decision) -> float:
        cell = self._cells.get((state, action))
        return cell[0] if cell else 0.0

    def seen(self, state: Bin, action: Decision) -> Seen:
        """What is known of `action` in `state`."""
        cell = self._cells.get((state, action))
        return _pooled([cell]) if cell else _NOTHING

    def alike(self, state: Bin, action: Decision) -> Seen:
        """What is known of `action` in all states with this loss, of any batch and peers."""
        cells = self._cells.items()
        return _pooled([cell for (known, taken), cell in cells if taken is action and known[1] == state[1]])

    def best(self) -> float:
        """The highest mean reward of any cell. Asked at every step, while cells change once a trial."""
        if self._best is None:
            self._best = max((cell[1] / cell[0] for cell in self._cells.values() if cell[0]), default=0.0)
        return self._best

    def discount(self, factor: float) -> None:
        """Multiplies all counts and rewards by `factor`, because workloads change."""
        for cell in self._cells.values():
            cell[:] = [part * factor for part in cell]
        self.total *= factor
        self._best = None

    def merge(self, other: ActionTable) -> None:
        """Add what another table has learned."""
        for (state, action), (count, reward, _) in other._cells.items():
            cell = self._cells.setdefault((state, action), [0.0, 0.0, 0.0])
            cell[0] += count
            cell[1] += reward
        self.total += other.total
        self._best = None

    def rows(self) -> Iterator[Row]:
        """Yields one row a cell: the state's three bins, the action, count, summed reward; sorted, ready to
        serialise."""
        for (state, action), (count, reward, _) in sorted(
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
            table._cells[(batch, loss, peers), decision] = [count, reward, 0.0]
            table.total += count
        return table


def _pooled(cells: list[list[float]]) -> Seen:
    count = sum(cell[0] for cell in cells)
    if not count:
        return _NOTHING
    mean = sum(cell[1] for cell in cells) / count
    return Seen(count, mean, sum(own + n * (reward / n - mean) ** 2 for n, reward, own in cells if n))
