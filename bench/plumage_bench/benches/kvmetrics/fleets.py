"""Part (a): four workers at a load that cold caches could just not serve, by eviction policy, routing and queue."""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage.routing import make_policy
from plumage_bench.benches.kvmetrics import sessions
from plumage_bench.benches.kvmetrics.observer import Observed, Window
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.fleet import run_fleet
from plumage_bench.workloads import OpenLoop, Source

__all__ = ["BY_EVICTION", "CONTEXTS", "MIX", "OURS", "PARTS", "WORKERS", "Load", "Row", "measure"]

WORKERS = 4
_BATCH = 256
_MIXED = 3_000  # requests


@dataclass(frozen=True, slots=True)
class Load:
    """context: of the longest conversations; 0 for the article's mix. clients: of the whole fleet. Seconds from
    `begin` to `end` are measured."""

    label: str
    context: int
    clients: int
    begin: float
    end: float

    def source(self, seed: int) -> Source:
        if not self.context:
            prompts = sessions.mixed(_MIXED, seed)
            return OpenLoop(prompts, sessions.cold_rate(prompts, WORKERS), seed)
        rate = sessions.cold_rate(sessions.of_context(self.context), WORKERS)
        return sessions.steady(self.context, rate, self.end, self.clients, seed)

    def ceiling(self, seed: int) -> float:
        """The hit ratio of an endless cache."""
        if not self.context:
            return sessions.hit_ceiling([[prompt] for prompt in sessions.mixed(_MIXED, seed)], _MIXED // 10)
        return sessions.hit_ceiling(sessions.sessions(self.context, self.clients, 0, seed))


CONTEXTS = (
    Load("2k", 2048, 1024, 60, 300),
    Load("8k", 8192, 256, 100, 600),
    Load("32k", 32_768, 64, 300, 1500),
)
"""The conversations of the clients fill the caches of the fleet about one and a half times."""
MIX = Load("mix", 0, 0, 45, 3600)
"""About eight minutes, to its last answer; the first tenth is not measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """What serves the load. routing: None for the manifest's."""

    label: str
    eviction: str
    routing: str | None = None
    queue: str | None = None

    def ours(self) -> Ours:
        return Ours(
            {
                "engine.simulator.blockSize": sessions.BLOCK,
                "engine.simulator.maxNumSeqs": _BATCH,
                "engine.eviction.policy": self.eviction,
                **({} if self.queue is None else {"engine.feather.policy": self.queue}),
            }
        )


OURS = Row("Plumage", "Hotness")
BY_EVICTION = (OURS, Row("Plumage + LRU", "Lru"), Row("Plumage + RLT", "Rlt"))
PARTS = (
    Row("round robin, FCFS, LRU", "Lru", "RoundRobin", "Fcfs"),
    Row("least load, FCFS, LRU", "Lru", "LeastLoad", "Fcfs"),
    Row("LBGR, FCFS, LRU", "Lru", None, "Fcfs"),
)


def measure(row: Row, load: Load, seed: int) -> Observed:
    """Serve the load once."""
    rng, ours = random.Random(f"policy-{seed}"), row.ours()
    policy = ours.routing_policy(rng) if row.routing is None else make_policy(row.routing, rng=rng)
    window = Window(WORKERS, load.begin)
    run_fleet([ours.engine()] * WORKERS, policy, load.source(seed), seed=seed, until=load.end, observer=window)
    return window.observed()
