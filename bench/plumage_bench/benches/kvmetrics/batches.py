"""Part (b): one saturated worker, by limit of running requests: TaS and OBS, and what the product estimates.

*Sweep.* Clients wait for their turn, and each static limit of a ladder of powers of two runs. A limit sustains its rate
if at most 1 % of its requests were preempted, and P95 of the seconds between two tokens is at most 0.2. TaS is the
highest sustained rate, and OBS its limit.

*Estimate.* A pool's engine has one limit, the adaptive one, and loads that change. It runs while the number of clients
doubles step by step. `plumage.kv_metrics.Saturation` sees the steps, as in a running engine, and names the best batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

from plumage.kv_metrics import Saturation
from plumage.routing import make_policy
from plumage_bench.benches.kvmetrics import sessions
from plumage_bench.benches.kvmetrics.observer import Observed, Window
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.fleet import run_fleet
from plumage_bench.workloads import Source

__all__ = ["ADAPTIVE", "BETWEEN", "LADDERS", "PREEMPTED", "Ladder", "Sweep", "estimate", "ours", "saturate"]

ADAPTIVE = 0  # in place of a static limit
BETWEEN = 0.2  # seconds from token to token, P95
PREEMPTED = 0.01
_OVERSIZED = 256


@dataclass(frozen=True, slots=True)
class Ladder:
    """clients: for all limits. Seconds from `begin` to `end` are measured. step: seconds of each number of clients in
    the ramp. conversations: enough for any of the runs."""

    label: str
    context: int
    clients: int
    limits: tuple[int, ...]
    begin: float
    end: float
    step: float
    conversations: int


LADDERS = (
    Ladder("2k", 2048, 512, (8, 16, 32, 64, 128, 256), 30, 150, 60, 4_000),
    Ladder("8k", 8192, 128, (4, 8, 16, 32, 64, 128), 60, 300, 60, 1_000),
    Ladder("32k", 32_768, 32, (1, 2, 4, 8, 16, 32), 200, 900, 120, 300),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What each static limit did."""

    static: Mapping[int, Observed]

    @property
    def sustained(self) -> dict[int, float]:
        return {
            limit: one.rate
            for limit, one in self.static.items()
            if one.between <= BETWEEN and one.preempted <= PREEMPTED
        }

    @property
    def obs(self) -> int:
        """The smallest of the best; the smallest limit if none sustains its rate."""
        sustained = self.sustained
        return max(sustained, key=lambda limit: (sustained[limit], -limit)) if sustained else min(self.static)

    @property
    def tas(self) -> float:
        return self.sustained.get(self.obs, 0.0)

    def error(self, estimated: int) -> int:
        """Steps of the ladder between an estimated batch and OBS."""
        return round(abs(log2(estimated / self.obs)))


def ours(limit: int, eviction: str) -> Ours:
    return Ours(
        {
            "engine.simulator.blockSize": sessions.BLOCK,
            "engine.simulator.maxNumSeqs": limit or _OVERSIZED,
            "engine.batchLimit": "Static" if limit else "Adaptive",
            "engine.eviction.policy": eviction,
        }
    )


def saturate(ladder: Ladder, limit: int, eviction: str, seed: int) -> Observed:
    """One limit, or the adaptive one, under the saturating load."""
    source = sessions.saturating(ladder.context, ladder.conversations, ladder.clients, seed)
    return _run(ours(limit, eviction), source, seed, Window(1, ladder.begin), ladder.end).observed()


def estimate(ladder: Ladder, eviction: str, seed: int) -> tuple[int, float] | None:
    """OBS and TaS of the ladder's context length, as the product estimates them from one run with its own limit. None
    if it sees no batch long enough."""
    starts = sessions.doubling(ladder.clients, ladder.step)
    waiting = sessions.sessions(ladder.context, ladder.conversations, ladder.clients, seed)
    window = Window(1, 0.0, Saturation(enough=ladder.step / 2, slowest=BETWEEN))
    end = starts[-1] + ladder.step
    return _run(ours(ADAPTIVE, eviction), sessions.Ramp(waiting, starts), seed, window, end).saturation.best(
        ladder.label
    )


def _run(made: Ours, source: Source, seed: int, window: Window, end: float) -> Window:
    only = make_policy("RoundRobin", rng=random.Random(seed))
    run_fleet([made.engine()], only, source, seed=seed, until=end, observer=window)
    return window
