"""When each pool's pods are polled next. Pure; the clock is an argument.

A pool that another scaler scales by our metrics (a HorizontalPodAutoscaler, KEDA) needs them as fresh as our own
autoscaler does. A request within `REQUESTED_RECENTLY` counts as such a scaler. A single request is forgotten after some
rounds, so that one scrape of everything does not cause polls of ten thousand pods for ever.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from typing import Final

from plumage_operator.cache.store import PoolKey

__all__ = ["ASLEEP_INTERVAL", "IDLE_INTERVAL", "INTERVAL", "REQUESTED_RECENTLY", "PollSchedule"]

INTERVAL: Final = 15.0
"""Seconds, as for Kubernetes' HorizontalPodAutoscaler. The operator's options may say less."""

ASLEEP_INTERVAL: Final = 2.0
"""Seconds between polls of a pool without replicas: its requests wait."""

IDLE_INTERVAL: Final = 60.0
"""Seconds between polls of a pool that nobody scales by its metrics.

Its status shows a hit ratio, and `kubectl scale` removes the coldest replica.
"""

REQUESTED_RECENTLY: Final = 180.0
"""Seconds: six of KEDA's default polling intervals, twelve of a HorizontalPodAutoscaler's."""

_EARLY: Final = 0.5  # seconds by which a round may be early


@dataclass(slots=True)
class _PollState:
    """at: when the last poll started. scaled: by our own autoscaler. requested: when somebody last requested its
    metrics.
    """

    at: float = -inf
    scaled: bool = True
    asleep: bool = False
    requested: float = -inf


class PollSchedule:
    """interval: seconds between polls of a pool that is scaled by its metrics."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._states: dict[PoolKey, _PollState] = {}

    def due(self, pool: PoolKey, now: float) -> bool:
        """Whether to poll the pool now. A new pool is due."""
        state = self._states.get(pool)
        return state is None or now >= state.at + self._every(state, now) - _EARLY

    def start(self, pool: PoolKey, now: float) -> None:
        """Notes the start of a poll. Until its result is recorded, the last one holds."""
        self._states.setdefault(pool, _PollState()).at = now

    def record(self, pool: PoolKey, *, scaled: bool, asleep: bool) -> None:
        """Records the result of a poll. scaled: our autoscaler scales the pool, or its status is about to change.
        asleep: it has no replicas."""
        state = self._states.setdefault(pool, _PollState())
        state.scaled, state.asleep = scaled, asleep

    def requested(self, pool: PoolKey, now: float) -> None:
        """Somebody requested the pool's metrics. Ignored for a pool that was never polled."""
        if (state := self._states.get(pool)) is not None:
            state.requested = now

    def retain(self, pools: Set[PoolKey]) -> None:
        """Drops all other pools."""
        for pool in self._states.keys() - pools:
            del self._states[pool]

    def _every(self, state: _PollState, now: float) -> float:
        if not state.scaled and now - state.requested > REQUESTED_RECENTLY:
            return max(IDLE_INTERVAL, self._interval)
        return min(ASLEEP_INTERVAL, self._interval) if state.asleep else self._interval
