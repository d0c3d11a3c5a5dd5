"""From pods and the reports of their processes to what the autoscaler's rules ask for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from plumage.autoscaling import CacheHeat, PoolLoad, ReplicaLoad
from plumage.fleet_report import AgentReport, HistogramReport, RouterReport
from plumage.mrc import MissRatioCurve
from plumage_operator.autoscale.pods import PoolPods, ScaledPod
from plumage_operator.autoscale.trouble import Trouble
from plumage_operator.autoscale.window import Window

__all__ = ["Reports", "heats", "pool_load"]

_TAIL = 0.95


@dataclass(slots=True)
class Reports:
    """Of a pool, by the pod's name."""

    agents: dict[str, Window[AgentReport]] = field(default_factory=dict)
    routers: dict[str, Window[RouterReport]] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)

    def keep(self, pods: PoolPods) -> None:
        """Forget the reports of pods that are gone."""
        engines, routers = {pod.name for pod in pods.engines}, {pod.name for pod in pods.routers}
        self.agents = {name: window for name, window in self.agents.items() if name in engines}
        self.routers = {name: window for name, window in self.routers.items() if name in routers}
        self.troubles = {name: one for name, one in self.troubles.items() if name in engines | routers}


def pool_load(pods: PoolPods, reports: Reports, wanted: int) -> PoolLoad:
    """Routers that are ready must all have told: the figures of some are not the pool's."""
    routers = [reports.routers.get(pod.name, Window[RouterReport]()) for pod in pods.routers if pod.ready]
    agents = [reports.agents[pod.name] for pod in pods.engines if pod.name in reports.agents]
    seen = [window.seen for window in routers]
    waits = _merged(window.histogram(lambda report: report.queue_wait) for window in agents)
    wait = waits.quantile(_TAIL)
    return PoolLoad(
        wanted=wanted,
        replicas=tuple(_replica(pod, reports.agents.get(pod.name)) for pod in pods.engines),
        seen=None if not seen or None in seen else min(one for one in seen if one is not None),
        arrivals=_sum(window.gained(lambda report: report.requests, looks=1) for window in routers),
        in_flight=_sum(_last(routers, lambda report: report.in_flight)),
        held=_sum(_last(routers, lambda report: max(report.held, report.wanting))),
        hit_ratio=_hit_ratio(routers),
        ttft=_merged(window.histogram(lambda report: report.ttft) for window in routers).quantile(_TAIL),
        queue_wait=wait,
        held_back=(wait or 0.0) * _held_back_share(agents),
        curve=_best_curve(routers),
        cache=_cache(pods, reports.agents),
    )


def heats(pods: PoolPods, reports: Mapping[str, Window[AgentReport]]) -> list[CacheHeat]:
    """What the fleet would miss of each replica."""
    return [_heat(pod, reports.get(pod.name)) for pod in pods.engines]


def _heat(pod: ScaledPod, window: Window[AgentReport] | None) -> CacheHeat:
    last = window.last if window else None
    if last is None:
        return CacheHeat(pod.name, pod.ready)
    return CacheHeat(pod.name, pod.ready, last.hotness, float(last.running + last.waiting))


def _replica(pod: ScaledPod, window: Window[AgentReport] | None) -> ReplicaLoad:
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


def _rate(window: Window[AgentReport], counter: Callable[[AgentReport], float]) -> float | None:
    """What the counter gained a second; None while the window is too short."""
    gained = window.gained(counter)
    return gained / window.seconds if gained is not None and window.seconds else None


def _held_back_share(agents: list[Window[AgentReport]]) -> float:
    """Of the time that requests wait: by Little's law the times are as the mean numbers of those that wait."""
    held = sum(window.mean(lambda report: report.waiting_held_back) for window in agents)
    others = sum(window.mean(lambda report: report.waiting_for_capacity) for window in agents)
    return held / (held + others) if held else 0.0


def _hit_ratio(routers: list[Window[RouterReport]]) -> float | None:
    cached = _sum(window.gained(lambda report: report.cached_tokens) for window in routers)
    prompts = _sum(window.gained(lambda report: report.prompt_tokens) for window in routers)
    return min(1.0, cached / prompts) if prompts and cached is not None else None


def _best_curve(routers: list[Window[RouterReport]]) -> MissRatioCurve | None:
    """Of the router that saw most: each sees its own requests, and the curves of several do not add up."""
    curves = [window.last.curve for window in routers if window.last is not None and window.last.curve.tokens]
    return max(curves, key=lambda curve: curve.accesses).as_curve() if curves else None


def _cache(pods: PoolPods, agents: Mapping[str, Window[AgentReport]]) -> float | None:
    lasts = [agents[pod.name].last for pod in pods.engines if pod.ready and pod.name in agents]
    sizes = [last.cache_tokens for last in lasts if last is not None and last.cache_tokens]
    return sum(sizes) / len(sizes) if sizes else None


def _merged(found: Iterable[HistogramReport | None]) -> HistogramReport:
    """Of one kind of buckets, the first's: during an upgrade there may be two."""
    return reduce(_added, (one for one in found if one is not None and one.count), HistogramReport())


def _added(total: HistogramReport, one: HistogramReport) -> HistogramReport:
    if not total.counts:
        return one
    if total.bounds != one.bounds:
        return total
    counts = [left + right for left, right in zip(total.counts, one.counts, strict=True)]
    return HistogramReport(total.bounds, counts, total.total + one.total)


def _last(routers: list[Window[RouterReport]], gauge: Callable[[RouterReport], float]) -> Iterable[float | None]:
    return (None if window.last is None else float(gauge(window.last)) for window in routers)


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one is not known, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
