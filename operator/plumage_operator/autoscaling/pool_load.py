"""Reports of a pool's pods over the last minute, and the load that they show. Pure; the clock is an argument.

A report's own times come from its machine's clock, which may be wrong. They are compared only with one another. The
operator's clock says when a report was seen. Where the two clocks disagree on how much time passed, the operator's
counts: somebody set the machine's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, Generic, TypeVar

from plumage.autoscaling import CacheHotness, PoolLoad, ReplicaLoad
from plumage.fleet_report import AgentReport, HistogramReport, RouterReport
from plumage.mrc import MissRatioCurve
from plumage_operator.autoscaling.pods import PoolPods, ScaledPod
from plumage_operator.autoscaling.report_client import PodBackoff

__all__ = ["MAX_REPORTS", "WINDOW", "PodReports", "ReportWindow", "cache_hotness", "pool_load"]

_TAIL = 0.95


@dataclass(slots=True)
class PodReports:
    """Reports and backoffs of a pool's pods, by the pod's name."""

    agents: dict[str, ReportWindow[AgentReport]] = field(default_factory=dict)
    routers: dict[str, ReportWindow[RouterReport]] = field(default_factory=dict)
    backoffs: dict[str, PodBackoff] = field(default_factory=dict)

    def retain(self, pods: PoolPods) -> None:
        """Drops the reports of pods that are gone."""
        engines, routers = {pod.name for pod in pods.engines}, {pod.name for pod in pods.routers}
        self.agents = {name: window for name, window in self.agents.items() if name in engines}
        self.routers = {name: window for name, window in self.routers.items() if name in routers}
        self.backoffs = {name: one for name, one in self.backoffs.items() if name in engines | routers}


def pool_load(pods: PoolPods, reports: PodReports, wanted: int) -> PoolLoad:
    """The pool's load. wanted: replicas.

    All ready routers must have reported, because the numbers of some are not the pool's.
    """
    routers = [reports.routers.get(pod.name, ReportWindow[RouterReport]()) for pod in pods.routers if pod.ready]
    agents = [reports.agents[pod.name] for pod in pods.engines if pod.name in reports.agents]
    seen = [window.seen for window in routers]
    waits = _merged(window.histogram(lambda report: report.queue_wait) for window in agents)
    in_engines = waits.quantile(_TAIL)
    in_routers = _merged(window.histogram(lambda report: report.queue_wait) for window in routers).quantile(_TAIL)
    return PoolLoad(
        wanted=wanted,
        replicas=tuple(_replica(pod, reports.agents.get(pod.name)) for pod in pods.engines),
        seen=None if not seen or None in seen else min(one for one in seen if one is not None),
        arrivals=_sum(window.gained(lambda report: report.requests, back=1) for window in routers),
        in_flight=_sum(_last(routers, lambda report: report.in_flight)),
        waiting=_sum(_last(routers, lambda report: max(report.waiting, report.wanting))),
        queued=_sum(_last(routers, lambda report: report.queued)) or 0.0,
        hit_ratio=_hit_ratio(routers),
        ttft=_merged(window.histogram(lambda report: report.ttft) for window in routers).quantile(_TAIL),
        queue_wait=None if in_engines is None else in_engines + (in_routers or 0.0),
        held_back=(in_engines or 0.0) * _held_back_share(agents),
        curve=_best_curve(routers),
        cache=_cache(pods, reports.agents),
    )


def cache_hotness(pods: PoolPods, reports: Mapping[str, ReportWindow[AgentReport]]) -> list[CacheHotness]:
    """What the fleet would miss if each replica were removed."""
    return [_hotness(pod, reports.get(pod.name)) for pod in pods.engines]


def _hotness(pod: ScaledPod, window: ReportWindow[AgentReport] | None) -> CacheHotness:
    last = window.last if window else None
    if last is None:
        return CacheHotness(pod.name, pod.ready)
    return CacheHotness(pod.name, pod.ready, last.hotness, float(last.running + last.waiting))


def _replica(pod: ScaledPod, window: ReportWindow[AgentReport] | None) -> ReplicaLoad:
    last = window.last if window else None
    if window is None or last is None:
        return ReplicaLoad(id=pod.name, ready=pod.ready, warming=pod.starting)
    warming = last.warmup.state == "Warming" or pod.starting
    return ReplicaLoad(
        id=pod.name,
        ready=pod.ready,
        warming=warming and not pod.ready,
        seen=window.seen,
        total_tokens_per_second=_rate(window, lambda report: report.query_tokens + report.output_tokens),
        output_tokens_per_second=_rate(window, lambda report: report.output_tokens),
        in_flight=float(last.running + last.waiting),
        held_back=float(last.waiting_held_back),
        kv_usage=last.kv_usage,
    )


def _rate(window: ReportWindow[AgentReport], counter: Callable[[AgentReport], float]) -> float | None:
    """The counter's increase per second; None while the window is too short."""
    gained = window.gained(counter)
    return gained / window.seconds if gained is not None and window.seconds else None


def _held_back_share(agents: list[ReportWindow[AgentReport]]) -> float:
    """The share of waiting time that requests are held back on purpose. By Little's law, times are as the mean numbers
    of waiting requests.
    """
    held = sum(window.mean(lambda report: report.waiting_held_back) for window in agents)
    others = sum(window.mean(lambda report: report.waiting_for_capacity) for window in agents)
    return held / (held + others) if held else 0.0


def _hit_ratio(routers: list[ReportWindow[RouterReport]]) -> float | None:
    cached = _sum(window.gained(lambda report: report.cached_tokens) for window in routers)
    prompts = _sum(window.gained(lambda report: report.prompt_tokens) for window in routers)
    return min(1.0, cached / prompts) if prompts and cached is not None else None


def _best_curve(routers: list[ReportWindow[RouterReport]]) -> MissRatioCurve | None:
    """The curve of the router that saw most requests. Each sees its own requests, and curves do not add up."""
    curves = [window.last.curve for window in routers if window.last is not None and window.last.curve.tokens]
    return max(curves, key=lambda curve: curve.accesses).as_curve() if curves else None


def _cache(pods: PoolPods, agents: Mapping[str, ReportWindow[AgentReport]]) -> float | None:
    lasts = [agents[pod.name].last for pod in pods.engines if pod.ready and pod.name in agents]
    sizes = [last.cache_tokens for last in lasts if last is not None and last.cache_tokens]
    return sum(sizes) / len(sizes) if sizes else None


def _merged(found: Iterable[HistogramReport | None]) -> HistogramReport:
    """The sum of histograms with the first one's buckets. During an upgrade there may be two kinds."""
    return reduce(_added, (one for one in found if one is not None and one.count), HistogramReport())


def _added(total: HistogramReport, one: HistogramReport) -> HistogramReport:
    if not total.counts:
        return one
    if total.bounds != one.bounds:
        return total
    counts = [left + right for left, right in zip(total.counts, one.counts, strict=True)]
    return HistogramReport(total.bounds, counts, total.total + one.total)


def _last(routers: list[ReportWindow[RouterReport]], gauge: Callable[[RouterReport], float]) -> Iterable[float | None]:
    return (None if window.last is None else float(gauge(window.last)) for window in routers)


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one value is unknown, or there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None


WINDOW: Final = 60.0
"""Seconds of rates, ratios and percentiles, as the manifest documents."""

MAX_REPORTS: Final = 64

_LATE: Final = 10.0  # seconds that an answer may take, with the wait for a free connection

_R = TypeVar("_R", AgentReport, RouterReport)


@dataclass(slots=True)
class ReportWindow(Generic[_R]):
    """reports: when each was seen, and its content. The first is the newest of those that are older than the window."""

    reports: deque[tuple[float, _R]] = field(default_factory=lambda: deque(maxlen=MAX_REPORTS))

    def add(self, report: _R, now: float) -> None:
        """Adds a report. A report of another process starts a new window."""
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
        """The time between the first and the last report; 0 where there are none."""
        if not self.reports:
            return 0.0
        (before, first), (now, last) = self.reports[0], self.reports[-1]
        if self._started_within():
            return max(0.0, last.at - last.started)
        reported, seen = last.at - first.at, now - before
        return max(0.0, reported if abs(reported - seen) <= _LATE else seen)

    def gained(self, counter: Callable[[_R], float], *, back: int | None = None) -> float | None:
        """The counter's increase within the window, or since `back` reports ago.

        None where there is only one report, unless its process started within the window. Never below 0: a counter that
        fell restarted.
        """
        if self._started_within() and back is None:
            return max(0.0, counter(self.reports[-1][1]))
        if len(self.reports) <= (back or 1):
            return None
        before = self.reports[-1 - back if back else 0][1]
        return max(0.0, counter(self.reports[-1][1]) - counter(before))

    def histogram(self, read: Callable[[_R], HistogramReport]) -> HistogramReport | None:
        """The observations within the window."""
        if not self.reports:
            return None
        if self._started_within():
            return read(self.reports[-1][1])
        return read(self.reports[-1][1]).since(read(self.reports[0][1])) if len(self.reports) > 1 else None

    def mean(self, gauge: Callable[[_R], float]) -> float:
        """The mean over the reports of the window; 0 where there are none."""
        return sum(gauge(report) for _, report in self.reports) / len(self.reports) if self.reports else 0.0

    def _started_within(self) -> bool:
        """Whether the process started within the window: its counters were 0 then."""
        if not self.reports:
            return False
        last = self.reports[-1][1]
        return 0.0 < last.started <= last.at < last.started + WINDOW
