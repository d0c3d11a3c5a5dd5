"""`vllm-overhead`: what FEATHER's scheduler costs in CPU time, beside vLLM's own, with a device that costs nothing.

Two engine cores in this process, stock and with the plugin (FEATHER as configured by default, the adaptive limit),
each over a virtual GPU without cost. A round queues so many requests, serves the first of them, and throws the rest
away; a request costs its share of the queueing and of the serving, in CPU time of this process. Rounds alternate:
stock, plugin, stock again, and the two of stock tell what is noise. Hashing of prompts is left out: vLLM does it in
another thread, and both need it.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.vllm_timed import Ask, TimedEngine

__all__ = ["Load", "queue_and_serve", "run"]

_DEVICE = {"clock": "Wall", "timeScale": 0, "numBlocks": 12_501, "vocabulary": "All"}
_PLUGIN: Mapping[str, Any] = {"feather": {}, "batchLimit": "Adaptive"}
_ENGINE = {"max_model_len": 8192, "block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 8192}


@dataclass(frozen=True, slots=True)
class Load:
    """`queued` requests, of which `served` are answered. Groups of a shared prefix, a tail of its own for each."""

    queued: int
    served: int = 500
    answer: int = 64
    groups: int = 40
    shared: int = 512
    tail: int = 64

    def asks(self, seed: int) -> list[Ask]:
        rng = random.Random(f"overhead {seed}")
        prefixes = [rng.choices(range(250), k=self.shared) for _ in range(self.groups)]
        return [
            Ask(f"{seed}-{n}", prefixes[rng.randrange(self.groups)] + rng.choices(range(250), k=self.tail),
                self.answer, 0.0)
            for n in range(self.queued)
        ]  # fmt: skip


SHORT, LONG = Load(2_000), Load(20_000)
BRIEF = Load(2_000, served=1_000, answer=1)


def queue_and_serve(engine: TimedEngine, load: Load, seed: int) -> float:
    """CPU microseconds a request."""
    requests = [engine.prepared(ask) for ask in load.asks(seed)]
    gc.collect()
    began = time.process_time()
    for request in requests:
        engine.core.add_request(*request)
    queued = time.process_time()
    left = load.served
    while left > 0:
        outputs, _ = engine.core.step_fn()
        left -= sum(output.finished for client in (outputs or {}).values() for output in client.outputs)
    served = time.process_time()
    _forget(engine, requests)
    return 1e6 * ((queued - began) / load.queued + (served - queued) / (load.served - left))


def _forget(engine: TimedEngine, requests: Sequence[tuple[Any, int]]) -> None:
    engine.core.abort_requests([request.request_id for request, _ in requests])
    while engine.scheduler.has_requests():
        engine.core.step_fn()


@contextmanager
def engines() -> Iterator[tuple[TimedEngine, TimedEngine]]:
    """Stock, and with the plugin."""
    from plumage_engine.vllm.tiny_model import write_model

    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "tiny")
        pair = [TimedEngine(model, {"virtualGpu": _DEVICE, **extra}, **_ENGINE) for extra in ({}, _PLUGIN)]
        try:
            yield pair[0], pair[1]
        finally:
            for engine in pair:
                engine.close()


@dataclass(slots=True)
class _Rounds:
    """CPU microseconds a request, one figure a round: stock, plugin, stock again."""

    stock: list[float]
    plugin: list[float]
    again: list[float]

    def ratios(self, rng: random.Random) -> tuple[PairedRatio, PairedRatio]:
        """Plugin over the mean of the two rounds of stock around it; stock over stock."""
        around = [(one + other) / 2 for one, other in zip(self.stock, self.again, strict=True)]
        return paired_ratio(self.plugin, around, rng), paired_ratio(self.again, self.stock, rng)


def _rounds(pair: tuple[TimedEngine, TimedEngine], load: Load, seeds: range, done: Callable[[int], None]) -> _Rounds:
    stock, plugin = pair
    rounds = _Rounds([], [], [])
    for seed in seeds:
        for engine, figures in ((stock, rounds.stock), (plugin, rounds.plugin), (stock, rounds.again)):
            figures.append(queue_and_serve(engine, load, seed))
        done(1)
    return rounds


def run(context: Context) -> Report:
    pairs = 5 if context.quick else 20
    loads = {"2,000 queued": SHORT, "20,000 queued": LONG, "2,000 queued, answers of one token": BRIEF}
    with engines() as pair, context.progress("vllm-overhead", pairs * len(loads)) as advance:
        seeds = range(context.seed * 1_000, context.seed * 1_000 + pairs)
        _rounds(pair, SHORT, range(1), lambda done: None)  # warm
        found = {name: _rounds(pair, load, seeds, advance) for name, load in loads.items()}
        on = pair[1].scheduler.plumage.guards["feather"].on
    rng = random.Random(context.seed)
    short, long = found["2,000 queued"], found["20,000 queued"]
    over, noise = short.ratios(rng)
    growth = paired_ratio(long.plugin, short.plugin, rng)
    keys = {
        "over_stock_2k": over.ratio,
        "over_stock_2k_high": over.high,
        "noise_2k": noise.ratio,
        "growth_20k": growth.ratio,
        "growth_20k_high": growth.high,
        "feather_on": int(on),
    }
    return Report(keys, [_table(found, rng)], data={name: _data(rounds) for name, rounds in found.items()})


def _data(rounds: _Rounds) -> dict[str, list[float]]:
    return {"stock": rounds.stock, "plugin": rounds.plugin, "stock again": rounds.again}


def _table(found: Mapping[str, _Rounds], rng: random.Random) -> ResultTable:
    rows: list[list[int | float | str]] = []
    for name, rounds in found.items():
        over, noise = rounds.ratios(rng)
        rows.append([name, min(rounds.stock), min(rounds.plugin), str(over), str(noise)])
    return ResultTable(
        "CPU microseconds a request in vLLM's engine core, device without cost",
        ("load", "stock, least", "FEATHER, least", "FEATHER ÷ stock", "stock ÷ stock"),
        rows,
        f"{SHORT.groups} groups, {SHORT.shared} shared tokens and {SHORT.tail} of their own, {SHORT.answer} tokens of "
        f"answer, batch {_ENGINE['max_num_seqs']}; ratios are geometric means of pairs.",
    )
