"""The figures of a pool that the autoscaler decides on, with the time of each measurement.

None means that a figure was not measured. A figure that is older than `STALE` seconds counts as not measured. All times
are seconds of the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from plumage.mrc.curve import MissRatioCurve

__all__ = ["STALE", "PoolLoad", "ReplicaLoad"]

STALE: Final = 45.0
"""Three intervals of 15 s, which is the interval of Kubernetes' HorizontalPodAutoscaler. So two answers may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One replica. The caller leaves out replicas that are being deleted.

    warming: not Ready yet, but starting; a broken replica is neither ready nor warming.
    total_tokens_per_second: prompt tokens, cached ones included, and output tokens.
    output_tokens_per_second: output tokens alone.
    in_flight: requests running and waiting in the engine; held_back: those
    of them that its batching policy keeps waiting on purpose (FEATHER §4.3). kv_usage: KV blocks in use, 0 to 1.
    """

    id: str
    ready: bool = True
    warming: bool = False
    seen: float | None = None
    total_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    in_flight: float | None = None
    held_back: float = 0.0
    kv_usage: float | None = None

    def fresh(self, now: float) -> bool:
        return self.seen is not None and now - self.seen <= STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """The load of a pool.

    wanted: replicas that its Deployment asks for now.
    steady_for: seconds since the number of ready replicas last changed; the autoscaler fills it in.

    The routers report the others, all measured at `seen`:

    arrivals: requests since the last report.
    in_flight: requests not answered yet. waiting: those of them without an available replica. queued: those of them
        that wait until a replica has room.
    hit_ratio: cached ÷ all prompt tokens; None where no prompt was answered.
    ttft, queue_wait: seconds, 95th percentile; None where nothing was measured.
    held_back: seconds that a request is kept waiting on purpose, part of both.
    curve: the share of prompt tokens that one cache of each size would miss. cache: the size of one replica's cache.
    """

    wanted: int
    replicas: tuple[ReplicaLoad, ...] = ()
    seen: float | None = None
    arrivals: float | None = None
    in_flight: float | None = None
    waiting: float | None = None
    queued: float = 0.0
    hit_ratio: float | None = None
    ttft: float | None = None
    queue_wait: float | None = None
    held_back: float = 0.0
    curve: MissRatioCurve | None = None
    cache: float | None = None
    steady_for: float = inf

    def fresh(self, now: float) -> bool:
        return self.seen is not None and now - self.seen <= STALE

    def idle(self, now: float) -> bool:
        """Whether it is certain that no request arrived since the last report and none is in flight."""
        return self.fresh(now) and self.arrivals == 0 and self.in_flight == 0 and not self.waiting

    @property
    def ready(self) -> int:
        return sum(replica.ready for replica in self.replicas)

    @property
    def warming(self) -> tuple[str, ...]:
        """Names of the replicas that are starting."""
        return tuple(replica.id for replica in self.replicas if replica.warming and not replica.ready)
