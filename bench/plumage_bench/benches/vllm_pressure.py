"""`vllm-pressure`: the adaptive limit of running requests against static batches, real vLLM on the virtual GPU.

Requests of a context length, which share nothing, all wait at the start. The figure is output tokens a second until the
last answer, in virtual time. The KV cache has 196,608 tokens (24 GiB of the modelled GPU). There are two kinds of
admission. By default, vLLM 0.32 lets a request wait until its whole prompt fits, so that only growing answers can fill
the cache. Without that gate (`--no-scheduler-reserve-full-isl`, chunks of 1,024 tokens), as in earlier versions, too
many prompts evict each other. These loads have short answers, so that prompts dominate.

Virtual time repeats exactly, as `again` shows, so the machine has no effect on the figures. Only the load varies: a
seed draws the lengths of prompts and answers, and all batches of a pair serve the same requests. The best static batch
is the best for that load, which no operator can know beforehand. The first seed tries all of them. The others try those
within 5 % of the best, and at 32k also the oversized one.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys, least_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.vllm.timed import Ask, TimedEngine

__all__ = ["LOADS", "Load", "Rates", "closing", "over", "rates", "run"]

BLOCK, BLOCKS = 16, 12_288
OVERSIZED = 256
_SEEDS = 5
OURS = Ours({"engine.feather.policy": "Fcfs", "engine.eviction.policy": "Lru"}, "VLLM")
"""Only the limit: queue and eviction order are vLLM's, as in the static batches."""
_UNGATED: Mapping[str, Any] = {"scheduler_reserve_full_isl": False, "long_prefill_token_threshold": 1024}
_FRACTIONS = (0.5, 0.75, 1.0, 1.5, 2.0)  # multiples of the number of requests whose whole contexts fit


@dataclass(frozen=True, slots=True)
class Load:
    """`count` requests of at most `context` tokens. gated: vLLM's default. Prompts have 40 to 60 % of the context and
    answers 5 to 20 %; without the gate prompts have 70 to 95 % and answers 16 to 400 tokens."""

    context: int
    count: int
    gated: bool

    @property
    def label(self) -> str:
        return f"{self.context // 1024}k{'' if self.gated else ', without the gate'}"

    @property
    def against_oversized(self) -> bool:
        return self.context == 32_768

    @property
    def batches(self) -> list[int]:
        """Static batches to compare with. The last one is oversized."""
        fitting = BLOCKS * BLOCK / self.context
        return [*(max(2, round(fitting * part)) for part in _FRACTIONS), OVERSIZED]

    def asks(self, seed: int) -> list[Ask]:
        rng = random.Random(f"pressure {self.context} {seed}")
        text = rng.choices(range(250), k=self.context)
        asks = []
        for number in range(self.count):
            low, high = (0.4, 0.6) if self.gated else (0.7, 0.95)
            prompt = [number % 250, number // 250, *text[: int(self.context * rng.uniform(low, high))]]
            answer = self.context * rng.uniform(0.05, 0.2) if self.gated else rng.uniform(16, 400)
            asks.append(Ask(f"{number}", prompt, int(answer), 0.0))
        return asks


LOADS = tuple(
    Load(context, count, gated)
    for gated in (True, False)
    for context, count in ((2048, 600), (8192, 150), (32_768, 40))
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Output tokens a second: by static batch, and with the adaptive limit, which starts at the oversized one."""

    static: Mapping[int, float]
    adaptive: float

    @property
    def best(self) -> float:
        return max(self.static.values())

    def worth_again(self, load: Load) -> list[int]:
        """Static batches within 5 % of the best, and the oversized one if the load is compared with it."""
        always = {OVERSIZED} if load.against_oversized else set()
        return [batch for batch, rate in self.static.items() if rate > 0.95 * self.best or batch in always]


Found = Mapping[Load, Sequence[Rates]]


def rates(model: Path, load: Load, seed: int, batches: Sequence[int]) -> Rates:
    """The adaptive limit and these static batches on one load."""
    static = {batch: _rate(model, load, seed, batch, {}) for batch in batches}
    return Rates(static, _rate(model, load, seed, OVERSIZED, OURS.plugin()))


def _rate(model: Path, load: Load, seed: int, batch: int, plumage: Mapping[str, Any]) -> float:
    engine = TimedEngine(
        model,
        {**plumage, "virtualGpu": {"numBlocks": BLOCKS + 1, "vocabulary": "All"}},
        max_model_len=32_768,
        block_size=BLOCK,
        max_num_seqs=batch,
        max_num_batched_tokens=8192,
        **({} if load.gated else _UNGATED),
    )
    try:
        asks = load.asks(seed)
        ends = [outcome.end for outcome in engine.serve(asks).values()]
        if engine.failed:
            raise RuntimeError(f"a feature is off: {engine.failed}")
        return sum(ask.answer for ask in asks) / max(ends)
    finally:
        engine.close()


def run(context: Context) -> Report:
    from plumage_engine.vllm.tiny_model import write_model

    loads = [load for load in LOADS if not (context.quick and load.gated)]
    seeds = range(context.seed, context.seed + (1 if context.quick else _SEEDS))
    found: dict[Load, list[Rates]] = {}
    with tempfile.TemporaryDirectory() as folder, context.progress("loads", len(loads) * len(seeds)) as advance:
        model = write_model(Path(folder) / "tiny")
        for load in loads:
            batches = load.batches
            for seed in seeds:
                found.setdefault(load, []).append(rates(model, load, seed, batches))
                batches = found[load][0].worth_again(load)
                advance(1)
        again = _rate(model, loads[0], context.seed, OVERSIZED, OURS.plugin()) / found[loads[0]][0].adaptive
    data = {
        load.label: [{"static": dict(one.static), "adaptive": one.adaptive} for one in each]
        for load, each in found.items()
    }
    return Report(closing(found, again), [_table(found)], lambda figure: _plot(figure, found), data)


def over(found: Found, what: str) -> PairedRatio:
    """The adaptive limit ÷ the best static batch or the oversized one, over all loads and their seeds."""
    pairs = [one for each in found.values() for one in each]
    under = [one.best if what == "best" else one.static[OVERSIZED] for one in pairs]
    return paired_ratio([one.adaptive for one in pairs], under)


def closing(found: Found, again: float) -> dict[str, Figure]:
    """The closing line. min_over_best_static: of the worst load, with its interval."""
    by_load = [over({load: each}, "best") for load, each in found.items()]
    whole = over(found, "best")
    keys = least_keys("min_over_best_static", by_load) | interval_keys("over_best_static", whole)
    for load, each in found.items():
        if load.against_oversized:
            name, ratio = "over_oversized_gated" if load.gated else "over_oversized", over({load: each}, "oversized")
            keys |= interval_keys(name, ratio)
    return keys | {"again": again, "pairs": whole.pairs}


def _table(found: Found) -> ResultTable:
    rows: list[list[int | float | str]] = [
        [
            load.label,
            ", ".join(f"{batch}: {rate:.1f}" for batch, rate in each[0].static.items()),
            round(each[0].adaptive, 1),
            str(over({load: each}, "best")),
            str(over({load: each if load.against_oversized else each[:1]}, "oversized")),
        ]
        for load, each in found.items()
    ]
    return ResultTable(
        "Output tokens a second on the virtual GPU, in virtual time",
        ("context", "static batches, first seed", "adaptive", "÷ best static", "÷ oversized"),
        rows,
        f"{BLOCKS} blocks of {BLOCK} tokens; {OVERSIZED} is the oversized batch, where the adaptive limit begins.",
    )


def _plot(figure: Any, found: Found) -> None:
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (load, each) in zip(panels, found.items(), strict=True):
        for one in each:
            shown = sorted((batch, rate / one.best) for batch, rate in one.static.items())
            axes.plot([batch for batch, _ in shown], [rate for _, rate in shown], marker=".", color="gray", alpha=0.5)
            axes.axhline(one.adaptive / one.best, color="tab:blue", alpha=0.5)
        axes.set(xscale="log", ylim=(0.0, 1.1), xlabel="static batch")
        axes.set_title(load.label.replace(", ", "\n"), fontsize=9)
    panels[0].set_ylabel("tokens a second ÷ best static; blue: adaptive; each seed")
