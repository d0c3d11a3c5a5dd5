"""When a hit ratio has recovered after a fault, by windows of equal length over the requests that were sent since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.kube_load import Run, hit_ratio

__all__ = ["Reference", "Window", "reference"]

_STEP_S = 1.0


@dataclass(frozen=True)
class Window:
    """Requests sent within this many seconds. With fewer than `least` complete answers the ratio counts as 0: a pool
    without answers has not recovered, and the ratio of a few answers is chance."""

    seconds: float
    least: int

    def ratios(self, run: Run, start: float, end: float) -> Iterator[tuple[float, float]]:
        """The windows in this time, one a second: the start and ratio of each."""
        return ((at, ratio or 0.0) for at, ratio in self._measured(run, start, end))

    def _measured(self, run: Run, start: float, end: float) -> Iterator[tuple[float, float | None]]:
        at = start
        while at + self.seconds <= end:
            rows = [row for row in run.sent(at, at + self.seconds) if row.outcome == "ended"]
            yield at, hit_ratio(rows) if len(rows) >= self.least else None
            at += _STEP_S

    def lowest(self, run: Run, start: float, end: float) -> float:
        return min(ratio for _, ratio in self.ratios(run, start, end))

    def lowest_measured(self, run: Run, start: float, end: float) -> float | None:
        """The lowest ratio of windows with enough answers. It measures the caches also where the machine stood still
        meanwhile."""
        return min((ratio for _, ratio in self._measured(run, start, end) if ratio is not None), default=None)

    def back_s(self, run: Run, fault: float, end: float, wanted: float) -> float | None:
        """Seconds from the fault to the time from which every window that begins until `end` has the wanted ratio. 0:
        all have it. None: the last window does not, or there is none."""
        back: float | None = None
        for at, ratio in self.ratios(run, fault, end):
            if ratio < wanted:
                back = None
            elif back is None:
                back = at - fault
        return back


@dataclass(frozen=True)
class Reference:
    """A pool without faults for this many seconds. `ratio`: over all requests. `lowest`: its lowest window's, which
    only chance causes."""

    policy: str
    replicas: int
    seconds: float
    requests: int
    ratio: float
    lowest: float
    window_s: float


def reference(policy: str, replicas: int, run: Run, start: float, end: float, window: Window) -> Reference:
    rows = run.sent(start, end)
    ratio = hit_ratio(rows)
    assert ratio is not None, f"nothing was answered for {end - start:.0f} s"
    return Reference(policy, replicas, end - start, len(rows), ratio, window.lowest(run, start, end), window.seconds)
