"""`vllm-pressure`: the adaptive limit of running requests against static batches, real vLLM on the virtual GPU.

Requests of a context length that share nothing are all there at the start; output tokens a second until the last is
answered, in virtual time. The KV cache holds 196,608 tokens (24 GiB of the modelled GPU). Two ways of admission: as
vLLM 0.32 comes, where a request waits until its whole prompt fits, so that only growing answers can overfill the
cache; and without that gate (`--no-scheduler-reserve-full-isl`, chunks of 1,024 tokens), as before vLLM had it, where
prompts that are too many take the cache from each other. Short answers there, so that it is the prompts that count.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.vllm_timed import Ask, TimedEngine

__all__ = ["LOADS", "Load", "Rates", "rates", "run"]

BLOCK, BLOCKS = 16, 12_288
OVERSIZED = 256
_UNGATED: Mapping[str, Any] = {"scheduler_reserve_full_isl": False, "long_prefill_token_threshold": 1024}
_FRACTIONS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the requests whose whole contexts fit


@dataclass(frozen=True, slots=True)
class Load:
    """`count` requests of at most `context` tokens. gated: as vLLM comes. Prompts are 40 to 60 % of the context and
    answers 5 to 20 %; without the gate 70 to 95 %, and answers of 16 to 400 tokens."""

    context: int
    count: int
    gated: bool

    @property
    def label(self) -> str:
        return f"{self.context // 1024}k{'' if self.gated else ', without the gate'}"

    @property
    def batches(self) -> list[int]:
        """Static batches to compare with, the oversized one last."""
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
    for context, count in ((2048, 600), (8192, 150), (32_768, 50))
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Output tokens a second: by static batch, and with the adaptive limit, which begins at the oversized one."""

    static: Mapping[int, float]
    adaptive: float

    @property
    def over_best(self) -> float:
        return self.adaptive / max(self.static.values())

    @property
    def over_oversized(self) -> float:
        return self.adaptive / self.static[OVERSIZED]


def rates(model: Path, load: Load, seed: int) -> Rates:
    """All batches of one load."""
    static = {batch: _rate(model, load, seed, batch, {}) for batch in load.batches}
    return Rates(static, _rate(model, load, seed, OVERSIZED, {"batchLimit": "Adaptive"}))


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
        return sum(ask.answer for ask in asks) / max(ends)
    finally:
        engine.close()


def run(context: Context) -> Report:
    from plumage_engine.vllm.tiny_model import write_model

    loads = [load for load in LOADS if not (context.quick and load.gated)]
    with tempfile.TemporaryDirectory() as folder, context.progress("vllm-pressure", len(loads)) as advance:
        model, found = write_model(Path(folder) / "tiny"), {}
        for load in loads:
            found[load] = rates(model, load, context.seed)
            advance(1)
    keys: dict[str, float] = {
        "min_over_best_static": min(one.over_best for one in found.values()),
        **{_key(load): one.over_oversized for load, one in found.items() if load.context == 32_768},
    }
    data = {load.label: {"static": dict(one.static), "adaptive": one.adaptive} for load, one in found.items()}
    return Report(keys, [_table(found)], data=data)


def _key(load: Load) -> str:
    return "over_oversized_gated" if load.gated else "over_oversized"


def _table(found: Mapping[Load, Rates]) -> ResultTable:
    rows: list[list[int | float | str]] = [
        [
            load.label,
            ", ".join(f"{batch}: {rate:.1f}" for batch, rate in one.static.items()),
            round(one.adaptive, 1),
            round(one.over_best, 3),
            round(one.over_oversized, 3),
        ]
        for load, one in found.items()
    ]
    return ResultTable(
        "Output tokens a second on the virtual GPU, in virtual time",
        ("context", "static batches", "adaptive", "÷ best static", "÷ oversized"),
        rows,
        f"{BLOCKS} blocks of {BLOCK} tokens; {OVERSIZED} is the oversized batch, where the adaptive limit begins.",
    )
