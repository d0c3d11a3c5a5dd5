"""What the autoscaler is told of a pool: one frozen picture, with the time at which each part of it was measured.

A figure that is None was not measured. One that is older than `STALE` seconds counts as not measured. All times are
seconds of one clock, the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from plumage.mrc.curve import MissRatioCurve

__all__ = ["STALE", "PoolLoad", "ReplicaLoad"]

STALE: Final = 45.0
"""Three looks of 15 s, the interval of Kubernetes' HorizontalPodAutoscaler: one lost answer is no gap, three are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One replica that exists; those on their way out are left out by the caller.

    warming: not Ready yet, and on its way there; a replica that is broken is neither ready nor warming.
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
    """A pool. wanted: replicas that its Deployment asks for now.

    What its routers tell, all measured at `seen`: arrivals: requests that came since the last look; in_flight: requests
    not answered yet; held: those of them without a replica to go to; hit_ratio: cached ÷ all prompt tokens, None where
    no prompt was answered; ttft, queue_wait: seconds, 95th percentile, None where nothing was measured; held_back:
    seconds that a request is kept waiting on purpose, part of both.
    steady_for: seconds since the number of ready replicas last changed; the autoscaler fills it in.
    curve: what share of prompt tokens one cache of each size would miss; cache: the size of one replica's, in its unit.
    """

    wanted: int
    replicas: tuple[ReplicaLoad, ...] = ()
    seen: float | None = None
    arrivals: float | None = None
    in_flight: float | None = None
    held: float | None = None
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
        """Whether it is certain that nothing came since the last look and nothing is under way."""
        return self.fresh(now) and self.arrivals == 0 and self.in_flight == 0 and not self.held

    @property
    def ready(self) -> int:
        return sum(replica.ready for replica in self.replicas)

    @property
    def warming(self) -> tuple[str, ...]:
        """Replicas on their way to Ready, by name."""
        return tuple(replica.id for replica in self.replicas if replica.warming and not replica.ready)
