"""Throughput by context length and batch: TaS and OBS of the article (section 3.1), as a running engine sees them.

TaS is the most tokens a second that a batch sustains before memory is exhausted or an objective is missed; OBS is that
batch. An engine can't try static batches. But a decoding batch of `b` requests is as fast whether a limit or the load
made it so, and loads make many batches. So time is cut into windows. A window belongs to a class of contexts and to a
rung of the ladder of batches, by its means. Its output tokens count unless a request was preempted in it, or steps took
longer than the objective for the time between two tokens: such a window sustains nothing.

    rate of a cell = output tokens of its sustained windows ÷ seconds of all its windows
    TaS of a class = the highest rate of its cells with enough seconds;   OBS = the rung of that cell

A batch that the load never made is not compared. A cell with more than an hour of windows forgets half of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log2

__all__ = ["BATCHES", "CONTEXTS", "Cell", "Saturation", "class_of", "rung_of"]

CONTEXTS = ("2k", "8k", "32k", "more")
"""Names of the classes: tokens up to 2,048, 8,192, 32,768, and above."""
_MOST_TOKENS = (2048, 8192, 32_768)
BATCHES = tuple(1 << power for power in range(11))
"""The ladder: powers of two up to 1,024. A larger batch counts as the last."""
_REMEMBERED = 3600.0  # seconds of a cell; then half of it is forgotten


def class_of(tokens: float) -> str:
    """The class of a context of so many tokens."""
    return CONTEXTS[bisect_left(_MOST_TOKENS, tokens)]


def rung_of(batch: float) -> int:
    """The nearest rung, by ratio."""
    return BATCHES[min(max(0, round(log2(batch))), len(BATCHES) - 1)] if batch > 0 else BATCHES[0]


@dataclass(slots=True)
class Cell:
    """tokens, seconds: of all its windows since the start; tokens of sustained ones only."""

    tokens: float = 0.0
    seconds: float = 0.0
    recent_tokens: float = 0.0
    recent_seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds
        self.recent_tokens += tokens
        self.recent_seconds += seconds
        if self.recent_seconds > _REMEMBERED:
            self.recent_tokens /= 2
            self.recent_seconds /= 2

    @property
    def rate(self) -> float:
        """Sustained tokens a second, lately."""
        return self.recent_tokens / self.recent_seconds if self.recent_seconds else 0.0


class Saturation:
    """window: seconds of steps that make a window. enough: seconds of a cell below which it can't be the best.
    slowest: the objective, mean seconds from token to token; inf for none."""

    def __init__(self, *, window: float = 10.0, enough: float = 60.0, slowest: float = inf) -> None:
        self._window, self._enough, self._slowest = window, enough, slowest
        self._cells: dict[tuple[str, int], Cell] = {}
        self._clear()

    def _clear(self) -> None:
        self._seconds = self._running = self._context = 0.0
        self._tokens = self._steps = 0
        self._kept = True

    def step(self, seconds: float, running: int, context: int, tokens: int, preempted: int) -> None:
        """A step took `seconds`. running: requests in it. context: sum of their prompts' tokens. tokens: generated."""
        self._seconds += seconds
        self._running += running * seconds
        self._context += context * seconds
        self._tokens += tokens
        self._steps += 1
        if preempted:
            self._kept = False
        if self._seconds >= self._window:
            self._close()

    def _close(self) -> None:
        if self._running:
            place = class_of(self._context / self._running), rung_of(self._running / self._seconds)
            sustained = self._kept and self._seconds / self._steps <= self._slowest
            self._cells.setdefault(place, Cell()).add(self._tokens if sustained else 0, self._seconds)
        self._clear()

    def cells(self) -> Iterator[tuple[str, int, Cell]]:
        """(class, rung, cell) of every cell with a window, sorted."""
        for (context, batch), cell in sorted(self._cells.items()):
            yield context, batch, cell

    def best(self, context: str) -> tuple[int, float] | None:
        """OBS and TaS of a class. None if no cell has enough seconds and sustained anything. Of equal rates the
        smaller batch is best."""
        found = [
            (cell.rate, -batch)
            for (of, batch), cell in self._cells.items()
            if of == context and cell.recent_seconds >= self._enough and cell.rate > 0
        ]
        if not found:
            return None
        rate, batch = max(found)
        return -batch, rate
