"""One simulated engine under a load that waits for its answers: loads, settings and their throughput, for `drift`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final, get_args

from plumage import defaults
from plumage_bench.ours import Ours
from plumage_bench.workloads import ArticleKind, ArticleShape, Prompt, article_sessions
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = ["BLOCK", "CLIENTS", "LOADS", "POOLS", "Played", "Pool", "Setting", "play"]

BLOCK: Final = 16
CLIENTS: Final = 64
"""As many as the default manifest lets run at a time. Each sends its next request when it has its answer."""
LOADS: Final[tuple[ArticleKind, ...]] = get_args(ArticleKind)
HOST_BLOCKS: Final = 25_000
"""Twice the default manifest's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What serves the load. overrides: of the manifest. options: of the eviction policy, which no manifest has."""

    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def ours(self) -> Ours:
        return Ours({"engine.simulator.blockSize": BLOCK, **self.overrides})

    def engine(self) -> EngineSettings:
        made = self.ours().engine()
        return replace(made, eviction_options={**made.eviction_options, **self.options})

    def beside(self, other: Setting) -> Setting:
        """Both settings at once."""
        labels = [label for label in (self.label, other.label) if label]
        return Setting(", ".join(labels), {**self.overrides, **other.overrides}, {**self.options, **other.options})


_RLT: Final = Setting("RLT", {"engine.eviction.policy": "Rlt"})
_EVICTIONS: Final = (
    Setting("LRU", {"engine.eviction.policy": "Lru"}),
    _RLT,
    Setting("printed hotness", {"engine.eviction.hotness.form": "Paper"}),
    *(Setting(f"weight {weight}", options={"weights": (float(weight),)}) for weight in (1, 4, 16)),
)
"""Weights of frequency. LRU is weight 0."""
_ORDERS: Final = tuple(Setting(name, {"engine.feather.policy": name}) for name in ("Fcfs", "ChtOrder", "Predictive"))
_LIMITS: Final = tuple(
    Setting(f"batch {limit}", {"engine.simulator.maxNumSeqs": limit, "engine.batchLimit": "Static"})
    for limit in (16, 32, 48, 64)
)
_ADMISSIONS: Final = (
    *(
        Setting(
            f"{uses} uses, ageing {interval}",
            {"engine.hostMemory.minFrequency": uses, "engine.hostMemory.agingInterval": interval},
        )
        for uses, interval in product((1, 2, 4), (1, 10, 100))
    ),
    *(
        Setting(
            f"all, ageing {interval}",
            {"engine.hostMemory.admission": "All", "engine.hostMemory.agingInterval": interval},
        )
        for interval in (1, 100)
    ),
)
_PROMOTIONS: Final = tuple(
    Setting(f"promotion {name}", {"engine.hostMemory.promotion": name}) for name in ("Hotness", "Off")
)


@dataclass(frozen=True, slots=True)
class Pool:
    """A manifest that adapts, and the settings that could be fixed instead. parts: of which each fixed setting has one
    of each."""

    label: str
    ours: Setting
    parts: tuple[tuple[Setting, ...], ...]

    def fixed(self, quick: bool) -> list[Setting]:
        """The fixed settings. quick: each part alone, the others as in `ours`, and without RLT, which takes ten times
        as long to run."""
        chosen: Iterator[tuple[Setting, ...]] = ((one,) for part in self.parts for one in part if one is not _RLT)
        if not quick:
            chosen = product(*self.parts)
        return [self._made(settings) for settings in chosen]

    def _made(self, settings: Sequence[Setting]) -> Setting:
        made = replace(self.ours, label="")
        for one in settings:
            made = made.beside(one)
        return made


POOLS: Final = (
    Pool("default", Setting("default"), (_EVICTIONS, _ORDERS, _LIMITS)),
    Pool(
        "host memory",
        Setting(
            "host memory",
            {"engine.simulator.hostBlocks": HOST_BLOCKS, "engine.hostMemory.admission": defaults.ADMISSION},
        ),
        (_EVICTIONS, _ADMISSIONS, _PROMOTIONS),
    ),
)


@dataclass(frozen=True, slots=True)
class Played:
    """rate: prompt and answer tokens a second. hits: share of prompt tokens that were cached. stored: blocks copied to
    host memory a second."""

    rate: float
    hits: float
    stored: float


def play(setting: Setting, kind: ArticleKind, requests: int, seed: int) -> Played:
    """Serve the whole load."""
    engine = SimEngine(setting.engine(), rng=random.Random(f"policy {seed}"))
    waiting = deque(deque(one) for one in article_sessions(ArticleShape(kind, requests, BLOCK), seed))
    open_: dict[int, tuple[deque[Prompt], Prompt]] = {}
    now, sent, tokens, prompted, cached = 0.0, 0, 0, 0, 0

    def send(session: deque[Prompt]) -> None:
        nonlocal sent
        prompt, sent = session.popleft(), sent + 1
        open_[sent] = session, prompt
        engine.submit(
            SimRequest(sent, prompt.tokens, prompt.blocks, prompt.output_tokens, now, prompt.output_blocks), now
        )

    for _ in range(min(CLIENTS, len(waiting))):
        send(waiting.popleft())
    while (report := engine.step(now)) is not None:
        now += report.seconds
        engine.end_step(now)
        for name, hits in report.finished:
            session, prompt = open_.pop(int(str(name)))
            tokens += prompt.tokens + prompt.output_tokens
            prompted, cached = prompted + prompt.tokens, cached + hits
            if session:
                send(session)
            elif waiting:
                send(waiting.popleft())
    stored = 0 if engine.host is None else engine.host.tier.stored
    return Played(tokens / now, cached / prompted, stored / now)
