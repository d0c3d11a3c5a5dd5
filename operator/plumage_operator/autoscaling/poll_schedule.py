"""When each pool's pods are asked next. Pure; the clock is an argument.

A pool that somebody scales by our figures (a HorizontalPodAutoscaler, KEDA) needs them as fresh as our own autoscaler
does. Who asked `LATELY` counts as scaling it; who only looked once is forgotten after some rounds, so that one scrape
of everything does not make ten thousand pods be asked each round for ever.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from typing import Final

from plumage_operator.cache.store import PoolKey

__all__ = ["INTERVAL", "LATELY", "SELDOM", "WAKING", "PollSchedule"]

INTERVAL: Final = 15.0
"""Seconds, as Kubernetes' HorizontalPodAutoscaler; the operator's options may say less."""

WAKING: Final = 2.0
"""Seconds between looks at a pool without replicas: its requests wait."""

SELDOM: Final = 60.0
"""Seconds between looks at a pool that nobody scales by its figures: its status shows a hit ratio, and `kubectl scale`
removes the coldest replica."""

LATELY: Final = 180.0
"""Seconds: six of KEDA's default polling intervals, twelve of a HorizontalPodAutoscaler's."""

_EARLY: Final = 0.5  # seconds; what a round may come too soon and still be on time


@dataclass(slots=True)
class _Look:
    """at: when the last one began. scaled: by our own autoscaler. asked: when somebody asked for its figures last."""

    at: float = -inf
    scaled: bool = True
    asleep: bool = False
    requested: float = -inf


class PollSchedule:
    """interval: seconds between looks at a pool that is scaled by its figures."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._looks: dict[PoolKey, _Look] = {}

    def due(self, pool: PoolKey, now: float) -> bool:
        """Whether it is to be looked at now; one that is new is."""
        look = self._looks.get(pool)
        return look is None or now >= look.at + self._every(look, now) - _EARLY

    def start(self, pool: PoolKey, now: float) -> None:
        """A look began; until more is `learned` the last one's findings hold."""
        self._looks.setdefault(pool, _Look()).at = now

    def record(self, pool: PoolKey, *, scaled: bool, asleep: bool) -> None:
        """What a look found: whether it is scaled by our own autoscaler, and without replicas."""
        look = self._looks.setdefault(pool, _Look())
        look.scaled, look.asleep = scaled, asleep

    def requested(self, pool: PoolKey, now: float) -> None:
        """Somebody asked for its figures. Nothing is kept of a pool that was never looked at."""
        if (look := self._looks.get(pool)) is not None:
            look.requested = now

    def retain(self, pools: Set[PoolKey]) -> None:
        """Forget those that are gone."""
        for pool in self._looks.keys() - pools:
            del self._looks[pool]

    def _every(self, look: _Look, now: float) -> float:
        if not look.scaled and now - look.requested > LATELY:
            return max(SELDOM, self._interval)
        return min(WAKING, self._interval) if look.asleep else self._interval
