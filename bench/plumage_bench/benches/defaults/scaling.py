"""The autoscaler's decisions for one load that rises, falls and ends. They show the effect of fields of
`spec.autoscaling`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec
from plumage.autoscaling import Autoscaler, Decision, PoolLoad, ReplicaLoad

__all__ = ["decisions"]

_LOOK: Final = 15.0  # seconds
_PHASES: Final = ((8, 4.0), (20, 80.0), (12, 85.6), (12, 73.6), (20, 8.0), (30, 0.0))
"""Observations, and the pool's requests in flight: few, many, 7 % more, 8 % fewer, few, none."""


def decisions(spec: AutoscalingSpec) -> list[Decision]:
    """One for each observation. The pool has the size that was decided at the one before."""
    scaler, replicas, made = Autoscaler(), max(1, spec.min_replicas), []
    for number, in_flight in enumerate(_load()):
        now = number * _LOOK
        decision = scaler.decide(spec, _seen(replicas, in_flight, now), now)
        made.append(decision)
        if decision.replicas != replicas:
            scaler.scaled(replicas, decision.replicas, now)
            replicas = decision.replicas
    return made


def _load() -> Iterator[float]:
    for looks, in_flight in _PHASES:
        yield from [in_flight] * looks


def _seen(replicas: int, in_flight: float, now: float) -> PoolLoad:
    each = in_flight / max(1, replicas)
    ready = tuple(
        ReplicaLoad(
            id=f"r{number}",
            seen=now,
            total_tokens_per_second=100 * each,
            output_tokens_per_second=9 * each,
            in_flight=each,
            kv_usage=min(1, each / 50),
        )
        for number in range(replicas)
    )
    return PoolLoad(
        wanted=replicas, replicas=ready, seen=now, arrivals=in_flight, in_flight=in_flight, waiting=0,
        ttft=each / 40, queue_wait=each / 50, hit_ratio=0.5,
    )  # fmt: skip
