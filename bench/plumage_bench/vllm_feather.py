"""`vllm-feather`: FEATHER in real vLLM on a real device, end to end, against FCFS and against the tree's order alone.

A model of 8 layers, 512 hidden, in bf16, one thread; prompts of a shared prefix and a tail of one's own; greedy answers
of a fixed length. One engine serves all policies of a cell in turn, each with its own queue and what it has learned so
far, so that a pair of runs sees the same machine a minute apart; before the pairs each policy serves the load once.
`FCFS` is vLLM as it is: its own queue and batch. `tree` is ChtOrder, the tree's order without STOP. `one group` is the
homogeneous ceiling: the same requests, tails and lengths, but all with the first group's prefix.

Closed: all requests wait from the start. Open: they come as a Poisson process at a rate that FCFS can't keep up with.
Figures are output tokens a second of the process' own CPU time, which is what one thread's device takes; other work on
the machine slows the wall's clock more than it. Both are printed.

Two and three levels: prefixes that pairs of groups, and pairs of pairs, begin with. A step: requests come slowly at
first, then faster than anybody keeps up with; `converged s` is the CPU time from then until the rate has settled.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isnan, log, nan
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.converging import seconds_to_converge
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.vllm_engine import Engine, plugin_arguments, prepare_environment, running
from plumage_bench.vllm_feather_cells import BLOCK, CELLS, Cell, prompts

__all__ = ["CELLS", "CONTENDERS", "Cell", "Contender", "Played", "prompts", "run"]

_OFF = {"feather": None, "eviction": None, "batchLimit": "Static"}
_WINDOW = 2.0
"""CPU seconds over which a rate is taken after a step: some 500 tokens."""
_AGEING = 120.0  # seconds; a bound that a loaded machine of two cores does not reach by being slow


@dataclass(frozen=True, slots=True)
class Contender:
    """policy: of the plugin's `feather`; None is vLLM without it. homogeneous: its requests are all of one group."""

    label: str
    policy: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    homogeneous: bool = False

    def settings(self) -> dict[str, Any]:
        if self.policy is None:
            return dict(_OFF)
        asked = {"policy": self.policy, "options": dict(self.options), "maxWaitSeconds": _AGEING}
        return {**_OFF, "feather": asked}


FCFS, TREE, LEARNED = Contender("FCFS", None), Contender("tree", "ChtOrder"), Contender("bandit", "Bandit")
CEILING = Contender("one group", "ChtOrder", homogeneous=True)
CONTENDERS = (
    FCFS,
    TREE,
    LEARNED,
    CEILING,
    Contender("Q-learning", "QLearning"),
    Contender("heuristic", "Heuristic"),
    Contender("LPM", "Lpm"),
    Contender("DFS-W", "DfsWeight"),
    Contender("oracle", "Oracle"),
)


@dataclass(frozen=True, slots=True)
class Played:
    """One run. tokens: answered. waits: seconds to each first token. batch: mean of running requests. stops: of the
    policy. converged: CPU seconds that it took after a step of the rate."""

    tokens: int
    cpu: float
    wall: float
    waits: tuple[float, ...]
    batch: float
    stops: int
    converged: float = nan

    @property
    def rate(self) -> float:
        """Tokens a second of CPU time."""
        return self.tokens / self.cpu


class _Bench:
    """One cell's engine, and each contender's queue in it."""

    def __init__(self, engine: Engine, cell: Cell, contenders: Sequence[Contender]) -> None:
        from plumage_engine.vllm import batch_order
        from plumage_engine.vllm.compat.scheduler import FCFSRequestQueue
        from plumage_engine.vllm.features import Features
        from plumage_engine.vllm.settings import PluginSettings

        self.engine, self.cell = engine, cell
        self._order = batch_order
        self._parts: dict[str, tuple[Any, Any]] = {}
        for contender in contenders:
            engine.scheduler.waiting = FCFSRequestQueue()
            features = Features(engine.scheduler, PluginSettings.model_validate(contender.settings()))
            self._parts[contender.label] = (features, engine.scheduler.waiting)

    def play(self, contender: Contender, seed: int) -> Played:
        """Serve the cell's load once under `contender`."""
        features, self.engine.scheduler.waiting = self._parts[contender.label]
        self.engine.scheduler.plumage = features
        self._order.enabled = contender.policy is not None
        stops = features.counters.get("stops")
        load, rng = prompts(self.cell, seed, contender.homogeneous), random.Random(f"arrivals {seed}")
        waits: dict[str, tuple[float, float]] = {}
        batches: list[int] = []
        cpu, began = time.process_time(), time.perf_counter()
        due, number, change = 0.0, 0, 0.0
        times, made, last = [0.0], [0.0], 0.0
        while number < len(load) or self.engine.llm.has_unfinished_requests():
            while number < len(load) and time.perf_counter() - began >= due:
                self._submit(number, load[number], waits)
                number += 1
                faster = 1.0 if number < len(load) // 2 else self.cell.step
                due += rng.expovariate(self.cell.rate * faster) if self.cell.rate else 0.0
                change = time.process_time() - cpu if number == len(load) // 2 else change
            made.append(made[-1] + self._step(waits, batches))
            times.append(time.process_time() - cpu)
            if number < len(load) or len(self.engine.scheduler.waiting):
                last = times[-1]  # after that the batch empties
        spent, wall = time.process_time() - cpu, time.perf_counter() - began
        tokens = self.cell.requests * self.cell.output
        first = tuple(end - start for start, end in waits.values())
        stops = features.counters.get("stops") - stops
        settled = seconds_to_converge(times, made, change, last, _WINDOW) if self.cell.step != 1 else nan
        return Played(tokens, spent, wall, first, fmean(batches), stops, settled)

    def warm(self) -> None:
        """Each prefix in the cache, where there is room for all."""
        if not self.cell.room and self.cell.groups:
            seen = dict(prompts(self.cell, 0))
            for number, tokens in enumerate(seen.values()):
                self._submit(number, (0, tokens[: self.cell.prefix + 1]), {}, output=1)
            while self.engine.llm.has_unfinished_requests():
                self.engine.llm.step()

    def _submit(
        self, number: int, prompt: tuple[int, tuple[int, ...]], waits: dict[str, Any], output: int | None = None
    ) -> None:
        from vllm import SamplingParams

        group, tokens = prompt
        wanted = SamplingParams(
            max_tokens=output or self.cell.output, temperature=0.0, ignore_eos=True, detokenize=False,
            extra_args={"plumage_group": group},
        )  # fmt: skip
        waits[str(number)] = (time.perf_counter(), 0.0)
        self.engine.llm.add_request(str(number), {"prompt_token_ids": list(tokens)}, wanted)

    def _step(self, waits: dict[str, tuple[float, float]], batches: list[int]) -> int:
        """Returns how many requests got a token."""
        outputs = self.engine.llm.step()
        for output in outputs:
            start, end = waits[output.request_id]
            if not end:
                waits[output.request_id] = (start, time.perf_counter())
        if self.engine.scheduler.running:
            batches.append(len(self.engine.scheduler.running))
        return len(outputs)


def run(context: Context) -> Report:
    """Cells × contenders, in interleaved rounds."""
    prepare_environment()
    cells, contenders, rounds = _chosen(context)
    played: dict[str, dict[str, list[Played]]] = {}
    with TemporaryDirectory() as folder, context.progress("vllm-feather", len(cells) * (rounds + 1)) as done:
        model = _model(Path(folder))
        for cell in cells:
            played[cell.name] = _cell(model, cell, contenders, rounds, context.seed, done)
    return _report(cells, contenders, played, random.Random(context.seed))


def _chosen(context: Context) -> tuple[list[Cell], tuple[Contender, ...], int]:
    names = context.options.get("cells")
    wanted = names.split(";") if names else None
    cells = [cell for cell in CELLS if (not cell.asked if wanted is None else cell.name in wanted)]
    contenders = _contenders(context.options.get("policies"))
    rounds = int(context.options.get("pairs", "2" if context.quick else "20"))
    if context.quick:
        quick = [
            Cell("8 × 4k", 8, requests=32, output=32),
            Cell("no sharing, 1k", 0, prefix=1024, requests=24, output=32),
        ]
        return (quick if wanted is None else cells), CONTENDERS[:4], rounds
    return cells, contenders, rounds


def _contenders(labels: str | None) -> tuple[Contender, ...]:
    """FCFS, the tree's order and the bandit always: the closing line's figures are theirs."""
    if labels is None:
        return CONTENDERS
    wanted, known = labels.split(";"), {one.label for one in CONTENDERS}
    if unknown := [label for label in wanted if label not in known]:
        raise ConfigurationError(f"no policy labelled {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    return tuple(one for one in CONTENDERS if one in (FCFS, TREE, LEARNED) or one.label in wanted)


def _model(folder: Path) -> Path:
    from plumage_engine.vllm.tiny_model import write_model

    return write_model(folder / "m8", size="m8")


def _cell(
    model: Path, cell: Cell, contenders: Sequence[Contender], rounds: int, seed: int, done: Any
) -> dict[str, list[Played]]:
    """Rounds in which each contender serves the same load, their order turned each time; FCFS twice, for A/A."""
    arguments = {
        "block_size": BLOCK, "num_gpu_blocks_override": cell.blocks, "max_model_len": 8192,
        "max_num_seqs": cell.batch, "max_num_batched_tokens": 8192, **plugin_arguments(_OFF),
    }  # fmt: skip
    contenders = [one for one in contenders if cell.groups > 1 or not one.homogeneous]
    played: dict[str, list[Played]] = {label: [] for label in (*(one.label for one in contenders), "FCFS again")}
    with running(model, **arguments) as engine:
        bench = _Bench(engine, cell, contenders)
        bench.warm()
        for turn in range(rounds + 1):
            for contender in _turned(contenders, turn):
                result = bench.play(contender, seed * 1000 + turn)
                if turn:
                    played[contender.label].append(result)
            if turn:
                played["FCFS again"].append(bench.play(FCFS, seed * 1000 + turn))
            done(1)
    return played


def _turned(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    at = turn % len(contenders)
    return [*contenders[at:], *contenders[:at]]


# -- what it shows ---------------------------------------------------------------------------------------------------


def _ratio(of: Sequence[Played], to: Sequence[Played], rng: random.Random) -> PairedRatio:
    return paired_ratio([one.rate for one in of], [one.rate for one in to], rng)


def _report(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    played: Mapping[str, Mapping[str, Sequence[Played]]],
    rng: random.Random,
) -> Report:
    rows = [
        [cell.name, label, *_row(one, runs["FCFS"], runs["tree"], rng)]
        for cell, runs in ((cell, played[cell.name]) for cell in cells)
        for label, one in runs.items()
    ]
    columns = (
        "cell", "policy", "tok/CPU s", "tok/s", "TTFT P50 s", "P99 s", "batch", "STOPs", "converged s", "÷ FCFS",
        "÷ tree",
    )  # fmt: skip
    note = "Ratios: geometric mean over pairs, 95 % interval. 'FCFS again' ÷ FCFS is the noise."
    return Report(
        _keys(cells, played, rng),
        (ResultTable("FEATHER in real vLLM", columns, rows, note),),
        lambda figure: _plot(figure, cells, contenders, played),
        {
            "cells": {
                name: {label: [_raw(one) for one in runs] for label, runs in by.items()} for name, by in played.items()
            }
        },
    )


def _row(
    runs: Sequence[Played], fcfs: Sequence[Played], tree: Sequence[Played], rng: random.Random
) -> list[float | str]:
    waits = sorted(wait for one in runs for wait in one.waits)
    return [
        fmean(one.rate for one in runs), fmean(one.tokens / one.wall for one in runs), waits[len(waits) // 2],
        waits[int(0.99 * len(waits))], fmean(one.batch for one in runs), fmean(one.stops for one in runs),
        _converged(runs), str(_ratio(runs, fcfs, rng)), str(_ratio(runs, tree, rng)),
    ]  # fmt: skip


def _converged(runs: Sequence[Played]) -> str:
    """Median of the runs that settled, and how many did not."""
    settled = sorted(one.converged for one in runs if not isnan(one.converged))
    if not settled:
        return ""
    return f"{median(settled):.0f}" + (f" ({len(runs) - len(settled)} not)" if len(settled) < len(runs) else "")


def _keys(
    cells: Sequence[Cell], played: Mapping[str, Mapping[str, Sequence[Played]]], rng: random.Random
) -> dict[str, float]:
    """At 8 × 4k: over_fcfs; ceiling_over_fcfs, what one group reaches; of_ceiling, the learned policy's part of it.
    over_order: learned ÷ tree, geometric mean over the cells that count, and its lower bound. noshare_low: lower bound
    against FCFS where nothing is shared."""
    keys: dict[str, float] = {}
    if runs := played.get("8 × 4k"):
        keys["over_fcfs"] = _ratio(runs["bandit"], runs["FCFS"], rng).ratio
        if CEILING.label in runs:
            keys["ceiling_over_fcfs"] = _ratio(runs[CEILING.label], runs["FCFS"], rng).ratio
            keys["of_ceiling"] = _ratio(runs["bandit"], runs[CEILING.label], rng).ratio
    counted = [played[cell.name] for cell in cells if cell.counts]
    if counted:
        keys["over_order"], keys["over_order_low"] = _over_cells(counted, rng)
    for cell in cells:
        if not cell.groups:
            keys["noshare_low"] = _ratio(played[cell.name]["bandit"], played[cell.name]["FCFS"], rng).low
    return keys


def _over_cells(cells: Sequence[Mapping[str, Sequence[Played]]], rng: random.Random) -> tuple[float, float]:
    """Geometric mean over cells, each cell alike, and the lower 95 % bound by drawing pairs again within each."""
    logs = [
        [log(one.rate / other.rate) for one, other in zip(runs["bandit"], runs["tree"], strict=True)] for runs in cells
    ]
    drawn = sorted(fmean(fmean(rng.choices(pairs, k=len(pairs))) for pairs in logs) for _ in range(2000))
    return exp(fmean(fmean(pairs) for pairs in logs)), exp(drawn[50])


def _raw(one: Played) -> dict[str, float]:
    raw = {"tokens_per_cpu_s": one.rate, "tokens_per_s": one.tokens / one.wall, "batch": one.batch, "stops": one.stops}
    return raw if isnan(one.converged) else raw | {"converged_s": one.converged}


def _plot(
    figure: Any,
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    played: Mapping[str, Mapping[str, Sequence[Played]]],
) -> None:
    axes, width = figure.subplots(), 0.8 / len(contenders)
    for index, contender in enumerate(contenders):
        places = [place for place, cell in enumerate(cells) if contender.label in played[cell.name]]
        means = [
            fmean(one.rate for one in played[cells[place].name][contender.label])
            / fmean(one.rate for one in played[cells[place].name]["FCFS"])
            for place in places
        ]
        axes.bar([place + index * width for place in places], means, width, label=contender.label)
    axes.set_xticks([place + 0.4 for place in range(len(cells))], [cell.name for cell in cells], rotation=20)
    axes.set_ylabel("output tokens a CPU second ÷ FCFS")
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.legend()
