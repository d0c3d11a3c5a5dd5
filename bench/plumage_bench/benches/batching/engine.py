"""One simulated engine under a load of shared prefixes, for `batching` and its sweep: loads, policies, results."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plumage import defaults
from plumage_bench.ours import Ours
from plumage_engine.simulator.engine.device import PRESETS
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = [
    "BLOCK",
    "CACHE_BLOCKS",
    "CONTENDERS",
    "LOADS",
    "TAIL_BLOCKS",
    "Contender",
    "Load",
    "Played",
    "ours_of",
    "play",
    "requests",
    "settings_of",
    "throughput",
]

BLOCK, CACHE_BLOCKS, BUDGET = 16, 200_000, 32_768
NO_AGEING = 86_400  # seconds; the largest value that a manifest accepts
TAIL_BLOCKS = 6  # tokens that only this request has


@dataclass(frozen=True, slots=True)
class Load:
    """Equal `groups` with `prefix` shared tokens, in random order. Arrivals are a Poisson process with `rate` requests
    a second. `batch`: most running requests. `levels`: of the prefix tree; two neighbours on one level share all levels
    above it. `steps`: rates that follow each other instead of `rate`, each for an equal part of the requests.
    `outputs`: least and most output tokens of a request, instead of `output`. `skew`: group n has 1 ÷ (n + 1)^skew of
    the requests, by lot; 0 for equal groups."""

    name: str
    device: str
    count: int
    groups: int
    prefix: int = 5_000
    rate: float = 100.0
    output: int = 200
    batch: int = 500
    levels: int = 1
    steps: tuple[float, ...] = ()
    cache_blocks: int = CACHE_BLOCKS
    outputs: tuple[int, int] | None = None
    skew: float = 0.0

    def rate_at(self, number: int) -> float:
        """The rate, in requests a second, at this request."""
        return self.steps[number * len(self.steps) // self.count] if self.steps else self.rate

    def prefix_blocks(self, group: int) -> list[int]:
        """Names of the group's shared blocks."""
        blocks, last = self.prefix // BLOCK, self.levels - 1
        depths = [block * self.levels // blocks for block in range(blocks)]
        return [((depth << 16) + (group >> last - depth) + 1 << 20) + block for block, depth in enumerate(depths)]


@dataclass(frozen=True, slots=True)
class Contender:
    """queue: `engine.feather.policy`. options: of the policy, instead of the manifest's. ordered: the running batch is
    sorted by prefix. fields: more fields of `engine.feather`, by their path. ages: it has a pool's ageing bound. lab: a
    queue that no manifest names, instead of `queue`."""

    label: str
    queue: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ordered: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    ages: bool = False
    lab: str = ""


LOADS = (
    Load("gpu, 5 groups", "gpu", 3_000, 5),
    Load("gpu, 5 groups, longer", "gpu", 10_000, 5),
    Load("gpu, pairs", "gpu", 3_000, 1_500, prefix=500),
    Load("gpu, 8 small groups", "gpu", 256, 8, prefix=4_096, rate=1e6, output=100, batch=64),
    Load("gpu, no sharing", "gpu", 600, 600, batch=64),
    Load("cpu, 20 groups", "cpu", 2_000, 20, prefix=2_000, rate=20.0, output=100, batch=64),
)
_PRINTED_BANDIT = {"bandit.form": "Paper"}
CONTENDERS = (
    Contender("FCFS", "Fcfs"),
    Contender("tree order", "ChtOrder"),
    Contender("product", defaults.FEATHER_POLICY, ages=True),
    Contender("tree order, sorted batch", "ChtOrder", ordered=True),
    Contender("heuristic", "Heuristic"),
    Contender("predictive", "Predictive"),
    Contender("bandit, trial", "Bandit"),
    Contender("bandit, step", "Bandit", {"credit": "Step", "forgetting": "None", "exploration": 0.1}),
    Contender("bandit, step, c = 1", "Bandit", {"credit": "Step", "forgetting": "None", "exploration": 1.0}),
    Contender("bandit, printed", "Bandit", fields=_PRINTED_BANDIT),
    Contender("bandit, printed, c = 0.05", "Bandit", {"exploration": 0.05}, fields=_PRINTED_BANDIT),
    Contender("Q, trial", "QLearning"),
    Contender("Q, step, ε × 0.999", "QLearning", {"credit": "Step", "decay": 0.999}),
    Contender("Q, step, ε × 0.9", "QLearning", {"credit": "Step", "decay": 0.9}),
    Contender("Q, printed", "QLearning", fields={"qLearning.form": "Paper"}),
)


def requests(load: Load, seed: int) -> list[SimRequest]:
    """The requests in order of arrival."""
    rng, now, made = random.Random(f"batching {load.name} {seed}"), 0.0, []
    groups = [number % load.groups for number in range(load.count)]
    rng.shuffle(groups)
    if load.skew:
        groups = rng.choices(range(load.groups), [(n + 1) ** -load.skew for n in range(load.groups)], k=load.count)
    shared = {group: load.prefix_blocks(group) for group in set(groups)}
    for number, group in enumerate(groups):
        output = rng.randint(*load.outputs) if load.outputs else load.output
        now += rng.expovariate(load.rate_at(number))
        hashes = shared[group] + [(number + 1 << 40) + block for block in range(TAIL_BLOCKS)]
        made.append(SimRequest(number, BLOCK * len(hashes) + 1, hashes, output, now, group=group))
    return made


@dataclass(frozen=True, slots=True)
class Played:
    """Output tokens a second over the whole load; mean seconds between two tokens of an answer; mean size of the
    running batch while requests ran."""

    throughput: float
    between: float
    batch: float


def throughput(load: Load, contender: Contender, seed: int) -> float:
    """Output tokens a second over the whole load."""
    return play(load, contender, seed).throughput


def ours_of(load: Load, contender: Contender) -> Ours:
    """The manifest of an engine for that load. Only the product has an ageing bound that can be reached, so that the
    others show what their orders are worth."""
    feather = {"policy": contender.queue, "orderBatch": contender.ordered, **contender.fields}
    if not contender.ages:
        feather["maxWaitSeconds"] = NO_AGEING
    return Ours(
        {
            "engine.simulator.blockSize": BLOCK,
            "engine.simulator.cacheBlocks": load.cache_blocks,
            "engine.simulator.maxNumSeqs": load.batch,
            "engine.simulator.maxBatchedTokens": BUDGET,
            **{f"engine.feather.{name}": value for name, value in feather.items()},
        }
    )


def settings_of(load: Load, contender: Contender) -> EngineSettings:
    """The engine's settings: the manifest's, and the policy options of this contender."""
    made = ours_of(load, contender).engine(PRESETS[load.device])
    options = {"max_wait": made.queue_options["max_wait"]} if contender.lab else made.queue_options
    return replace(made, queue=contender.lab or made.queue, queue_options={**options, **contender.options})


def play(load: Load, contender: Contender, seed: int) -> Played:
    """Serve the whole load."""
    engine, now = SimEngine(settings_of(load, contender), rng=random.Random(f"policy {seed}")), 0.0
    left = list(reversed(requests(load, seed)))
    made = sum(one.output_tokens for one in left)
    busy = decoded = waited = batched = 0.0
    while left or len(engine):
        while left and left[-1].arrival <= now:
            engine.submit(left.pop(), now)
        report = engine.step(now)
        if report is None:
            now = left[-1].arrival
        else:
            now += report.seconds
            busy += report.seconds
            batched += report.seconds * engine.load().running
            waited += report.seconds * report.decode_tokens
            decoded += report.decode_tokens
        engine.end_step(now)
    return Played(made / now, waited / decoded if decoded else 0.0, batched / busy)
