"""`vllm-overhead`: CPU time of vLLM's engine core with the plugin beside stock, with a device that takes no time.

There are three engine cores, each in its own process, over a virtual GPU without cost: stock, with the plugin and all
that the default manifest turns on (FEATHER, the adaptive limit, eviction by hotness), and stock again. A round queues
many requests, serves the first of them, and discards the rest. A request's cost is its share of queueing and serving,
in CPU time of the process. The engines alternate within a round, and the two stock engines show the noise. Hashing of
prompts is excluded: vLLM does it in another thread, and all engines need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plumage_bench.benches.vllm_overhead.turns import EngineProcess, Load, engines, play
from plumage_bench.harness import Context, Report, ResultTable, interval_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["run"]

_DEVICE = {"clock": "Wall", "timeScale": 0, "numBlocks": 12_501, "vocabulary": "All"}
OURS = Ours(runtime="VLLM")
_ENGINE = {"max_model_len": 8192, "block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
_ROUNDS = 5
"""Rounds of each load, by three processes."""
SHORT, LONG = Load(2_000), Load(20_000)
BRIEF = Load(2_000, served=1_000, answer=1)


@dataclass(slots=True)
class _Rounds:
    """CPU microseconds a request, one figure for each round: stock, plugin, stock again."""

    stock: list[float]
    plugin: list[float]
    again: list[float]

    def ratios(self) -> tuple[PairedRatio, PairedRatio]:
        """Plugin ÷ the mean of the two stock engines, and stock ÷ stock."""
        around = [(one + other) / 2 for one, other in zip(self.stock, self.again, strict=True)]
        return paired_ratio(self.plugin, around), paired_ratio(self.again, self.stock)


def _play(trio: Sequence[EngineProcess], load: Load, seed: int, into: _Rounds) -> None:
    for figures, cost in zip((into.stock, into.plugin, into.again), play(trio, load, seed), strict=True):
        figures.append(cost)


def run(context: Context) -> Report:
    trios = 1 if context.quick else 4
    loads = {"2,000 queued": SHORT, "20,000 queued": LONG, "2,000 queued, answers of one token": BRIEF}
    settings = [{"virtualGpu": _DEVICE, **extra} for extra in ({}, OURS.plugin(), {})]
    found, on = {name: _Rounds([], [], []) for name in loads}, True
    with context.progress("vllm-overhead", trios * _ROUNDS * len(loads)) as advance:
        for number in range(trios):
            with engines(_ENGINE, settings) as trio:
                _play(trio, SHORT, 0, _Rounds([], [], []))  # warm
                for name, load in loads.items():
                    for seed in range(number * _ROUNDS, (number + 1) * _ROUNDS):
                        _play(trio, load, context.seed * 1_000 + seed, found[name])
                        advance(1)
                on = on and "feather" in trio[1].ask("features")
    short, long = found["2,000 queued"], found["20,000 queued"]
    over, noise = short.ratios()
    growth = paired_ratio(long.plugin, short.plugin)
    keys = {
        **interval_keys("over_stock_2k", over),
        **interval_keys("noise_2k", noise),
        **interval_keys("growth_20k", growth),
        "feather_on": int(on),
    }
    return Report(keys, [_table(found)], data={name: _data(rounds) for name, rounds in found.items()})


def _data(rounds: _Rounds) -> dict[str, list[float]]:
    return {"stock": rounds.stock, "plugin": rounds.plugin, "stock again": rounds.again}


def _table(found: Mapping[str, _Rounds]) -> ResultTable:
    rows: list[list[int | float | str]] = []
    for name, rounds in found.items():
        over, noise = rounds.ratios()
        rows.append([name, min(rounds.stock), min(rounds.plugin), str(over), str(noise)])
    return ResultTable(
        "CPU microseconds a request in vLLM's engine core, device without cost",
        ("load", "stock, least", "plugin, least", "plugin ÷ stock", "stock ÷ stock"),
        rows,
        f"{SHORT.groups} groups, {SHORT.shared} shared tokens and {SHORT.tail} of their own, {SHORT.answer} tokens of "
        f"answer, batch {_ENGINE['max_num_seqs']}; ratios are geometric means of pairs.",
    )
