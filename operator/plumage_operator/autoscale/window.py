"""Reports of one process over the last minute, and what its counters gained in it. Pure; the clock is an argument.

A report's own times are of its machine's clock, which may be wrong: they are only ever compared with one another. When
a report was *seen* is by the operator's clock; where the two disagree on how much time went by, the machine's was set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from plumage.fleet_report import AgentReport, HistogramReport, RouterReport

__all__ = ["MOST_KEPT", "WINDOW", "Window"]

WINDOW: Final = 60.0
"""Seconds that rates, ratios and percentiles are of: what the manifest promises."""
MOST_KEPT: Final = 64
_LATE: Final = 10.0  # seconds that an answer may be on its way, and in line for it, at most

_R = TypeVar("_R", AgentReport, RouterReport)


@dataclass(slots=True)
class Window(Generic[_R]):
    """`reports`: when each was seen, and what it said; the first is the latest of those that are a window old."""

    reports: deque[tuple[float, _R]] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))

    def add(self, report: _R, now: float) -> None:
        """A report of another process than before begins anew."""
        if self.reports and self.reports[-1][1].started != report.started:
            self.reports.clear()
        self.reports.append((now, report))
        while len(self.reports) > 1 and self.reports[1][0] <= now - WINDOW:
            self.reports.popleft()

    @property
    def last(self) -> _R | None:
        return self.reports[-1][1] if self.reports else None

    @property
    def seen(self) -> float | None:
        return self.reports[-1][0] if self.reports else None

    @property
    def seconds(self) -> float:
        """That the gains below are of; 0 where there are none."""
        if not self.reports:
            return 0.0
        (before, first), (now, last) = self.reports[0], self.reports[-1]
        if self._young():
            return max(0.0, last.at - last.started)
        told, seen = last.at - first.at, now - before
        return max(0.0, told if abs(told - seen) <= _LATE else seen)

    def gained(self, counter: Callable[[_R], float], *, looks: int | None = None) -> float | None:
        """By a counter within the window, or since so many reports ago; None where one report is all there is, unless
        all that it counted is of the window. Never below 0: a counter that fell is one that began anew."""
        if self._young() and looks is None:
            return max(0.0, counter(self.reports[-1][1]))
        if len(self.reports) <= (looks or 1):
            return None
        before = self.reports[-1 - looks if looks else 0][1]
        return max(0.0, counter(self.reports[-1][1]) - counter(before))

    def histogram(self, read: Callable[[_R], HistogramReport]) -> HistogramReport | None:
        """What came within the window."""
        if not self.reports:
            return None
        if self._young():
            return read(self.reports[-1][1])
        return read(self.reports[-1][1]).since(read(self.reports[0][1])) if len(self.reports) > 1 else None

    def mean(self, gauge: Callable[[_R], float]) -> float:
        """Over the reports of the window; 0 of none."""
        return sum(gauge(report) for _, report in self.reports) / len(self.reports) if self.reports else 0.0

    def _young(self) -> bool:
        """Whether the process began within the window: its counters were 0 then."""
        if not self.reports:
            return False
        last = self.reports[-1][1]
        return 0.0 < last.started <= last.at < last.started + WINDOW
