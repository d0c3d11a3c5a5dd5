"""When a hit ratio is back after a fault: windows over the requests that were sent since, each as long as the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.kube_load import Run, hit_ratio

__all__ = ["Reference", "Window", "reference"]

_STEP_S = 1.0


@dataclass(frozen=True)
class Window:
    """Requests sent within so many seconds. With fewer than `least` whole answers its ratio counts as 0: a fleet that
    answers nothing is not back, and of a few answers one draw more or less tells nothing."""

    seconds: float
    least: int

    def ratios(self, run: Run, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Of each window between, one a second: when it begins, and its ratio."""
        return ((at, ratio or 0.0) for at, ratio in self._told(run, start, end))

    def _told(self, run: Run, start: float, end: float) -> Iterator[tuple[float, float | None]]:
        at = start
        while at + self.seconds <= end:
            rows = [row for row in run.sent(at, at + self.seconds) if row.outcome == "ended"]
            yield at, hit_ratio(rows) if len(rows) >= self.least else None
            at += _STEP_S

    def lowest(self, run: Run, start: float, end: float) -> float:
        return min(ratio for _, ratio in self.ratios(run, start, end))

    def lowest_told(self, run: Run, start: float, end: float) -> float | None:
        """Of windows with answers enough: what caches were worth, whether or not the machine stood still meanwhile."""
        return min((ratio for _, ratio in self._told(run, start, end) if ratio is not None), default=None)

    def back_s(self, run: Run, fault: float, end: float, wanted: float) -> float | None:
        """Seconds from the fault to the moment from which on every window that begins until `end` has the ratio that is
        wanted; 0 where all have. None: the last one has not, or there is none."""
        back: float | None = None
        for at, ratio in self.ratios(run, fault, end):
            if ratio < wanted:
                back = None
            elif back is None:
                back = at - fault
        return back


@dataclass(frozen=True)
class Reference:
    """A fleet that nothing is done to, for so many seconds. `ratio`: over all requests. `lowest`: its lowest window's,
    which is what chance alone makes of it."""

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
