"""`vllm-feather`: FEATHER in real vLLM on a real device, end to end, part by part, against FCFS and the tree's order.

A model of 8 layers, 512 hidden, in bf16, one thread; prompts of a shared prefix and a tail of one's own; greedy answers
of a fixed length. One engine serves all policies of a cell in turn, each with its own queue and what it has learned so
far, so that a pair of runs sees the same machine a minute apart; before the pairs each policy serves the load once.
Each part of FEATHER has its own row. `FCFS` is vLLM as it is: its own queue and batch. `FCFS sorted` sorts the running
batch by prefix. `order` is ChtOrder, the tree's order without STOP, and `order sorted` the same with a sorted batch.
`bandit` also decides when to STOP. `product` is what the default manifest deploys. `one group` is the homogeneous
ceiling: the same requests, tails and lengths, but all with the first group's prefix, in each of the orders. `FCFS
again` ÷ FCFS and `order again` ÷ order are the noise. All but `product` and `bandit, 10 s` have an ageing limit that a
slow device does not reach, so that ratios compare orders; these two have a pool's, and show what that bound costs where
requests wait for longer than that anyhow.

Closed: all requests wait from the start. Open: they come as a Poisson process at a rate that FCFS can't keep up with.
Figures are output tokens a second of the device's time: on a CPU the process' own CPU time, which is what one thread's
device takes, since other work on the machine slows the wall's clock more; on a GPU the wall's. Both are printed.

Two and three levels: prefixes that pairs of groups, and pairs of pairs, begin with. A step: requests come slowly at
first, then faster than anybody keeps up with; `converged s` is the device's time from then until the rate has settled.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.converging import seconds_to_converge
from plumage_bench.device import work_clock
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.vllm_engine import Engine, plugin_arguments, prepare_environment, running
from plumage_bench.vllm_feather_cells import BLOCK, CELLS, Cell, prompts
from plumage_bench.vllm_feather_contenders import AGAIN, ALWAYS, CEILINGS, CONTENDERS, FCFS, OFF, Contender
from plumage_bench.vllm_feather_kept import NAME, Kept
from plumage_bench.vllm_feather_report import Played, cell_line, report

__all__ = ["run"]

_WINDOW = 2.0
"""Seconds of the device over which a rate is taken after a step: some 500 tokens."""


@dataclass(slots=True)
class _Timing:
    """Of one run's requests, by number: when each came, when its first and its latest token; and all gaps between."""

    came: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)

    def token(self, number: str, now: float) -> None:
        if number in self.latest:
            self.gaps.append(now - self.latest[number])
        else:
            self.first[number] = now
        self.latest[number] = now

    def waits(self) -> tuple[float, ...]:
        return tuple(self.first[number] - came for number, came in self.came.items())


class _Bench:
    """One cell's engine, and each contender's queue in it."""

    def __init__(self, engine: Engine, cell: Cell, contenders: Sequence[Contender], clock: Callable[[], float]) -> None:
        from plumage.settings.plugin_config import PluginSettings
        from plumage_engine.vllm.compat.scheduler import FCFSRequestQueue
        from plumage_engine.vllm.feather import row_order
        from plumage_engine.vllm.features import Features

        self.engine, self.cell, self._clock = engine, cell, clock
        self._order = row_order
        self._parts: dict[str, tuple[Any, Any]] = {}
        for contender in contenders:
            engine.scheduler.waiting = FCFSRequestQueue()
            features = Features(engine.scheduler, PluginSettings.model_validate(contender.settings()))
            guard = features.guards.get("feather")
            if contender.orders and (guard is None or not guard.on):
                raise RuntimeError(f"{contender.label} is off: {guard.reason if guard else 'no guard'}")
            self._parts[contender.label] = (features, engine.scheduler.waiting)

    def play(self, contender: Contender, seed: int) -> Played:
        """Serve the cell's load once under `contender`."""
        features = self._led_by(contender)
        stops = features.counters.get("stops")
        load, rng = prompts(self.cell, seed, contender.homogeneous), random.Random(f"arrivals {seed}")
        timing, batches = _Timing(), list[int]()
        cpu, began = self._clock(), time.perf_counter()
        due, number, change = 0.0, 0, 0.0
        times, made, last = [0.0], [0.0], 0.0
        while number < len(load) or self.engine.llm.has_unfinished_requests():
            while number < len(load) and time.perf_counter() - began >= due:
                self._submit(number, load[number], timing)
                number += 1
                faster = 1.0 if number < len(load) // 2 else self.cell.step
                due += rng.expovariate(self.cell.rate * faster) if self.cell.rate else 0.0
                change = self._clock() - cpu if number == len(load) // 2 else change
            made.append(made[-1] + self._step(timing, batches))
            times.append(self._clock() - cpu)
            if number < len(load) or len(self.engine.scheduler.waiting):
                last = times[-1]  # after that the batch empties
        spent, wall = self._clock() - cpu, time.perf_counter() - began
        tokens = self.cell.requests * self.cell.output
        stops = features.counters.get("stops") - stops
        settled = seconds_to_converge(times, made, change, last, _WINDOW) if self.cell.step != 1 else nan
        return Played(tokens, spent, wall, timing.waits(), tuple(timing.gaps), fmean(batches), stops, settled)

    def _led_by(self, contender: Contender) -> Any:
        """Give the engine its queue and its features, which learn from the steps."""
        features, self.engine.scheduler.waiting = self._parts[contender.label]
        self.engine.scheduler.plumage = features
        self._order.enabled = contender.sorts
        return features

    def warm(self) -> None:
        """Each prefix in the cache, where there is room for all; none of the policies sees it."""
        self._led_by(FCFS)
        if not self.cell.room and self.cell.groups:
            seen = dict(prompts(self.cell, 0))
            for number, tokens in enumerate(seen.values()):
                self._submit(number, (0, tokens[: self.cell.prefix + 1]), _Timing(), output=1)
            while self.engine.llm.has_unfinished_requests():
                self.engine.llm.step()

    def _submit(
        self, number: int, prompt: tuple[int, tuple[int, ...]], timing: _Timing, output: int | None = None
    ) -> None:
        from vllm import SamplingParams

        group, tokens = prompt
        wanted = SamplingParams(
            max_tokens=output or self.cell.output, temperature=0.0, ignore_eos=True, detokenize=False,
            extra_args={"plumage_group": group},
        )  # fmt: skip
        timing.came[str(number)] = time.perf_counter()
        self.engine.llm.add_request(str(number), {"prompt_token_ids": list(tokens)}, wanted)

    def _step(self, timing: _Timing, batches: list[int]) -> int:
        """Returns how many requests got a token."""
        outputs = self.engine.llm.step()
        now = time.perf_counter()
        for output in outputs:
            timing.token(output.request_id, now)
        if batch := max(len(self.engine.scheduler.running), len(outputs)):  # those with their last token left already
            batches.append(batch)
        return len(outputs)


def run(context: Context) -> Report:
    """Cells × contenders, in interleaved rounds; each cell is kept when it is done."""
    prepare_environment()
    cells, contenders, rounds = _chosen(context)
    kept = Kept(context.out / NAME, _made_by(context, rounds, contenders), context.switch("resume"))
    played: dict[str, dict[str, list[Played]]] = {}
    total = sum(1 + _rounds(cell, rounds, context.quick) for cell in cells)
    with TemporaryDirectory() as folder, context.progress("vllm-feather", total) as done:
        model = _model(Path(folder))
        for cell in cells:
            turns = _rounds(cell, rounds, context.quick)
            if (runs := kept.cell(repr(cell))) is None:
                runs = _cell(model, cell, contenders, turns, context, done)
                kept.keep(repr(cell), runs)
            else:
                done(1 + turns)
            played[cell.name] = runs
            context.console.print(cell_line(cell, runs))
    return report(cells, contenders, played)


def _made_by(context: Context, rounds: int, contenders: Sequence[Contender]) -> dict[str, Any]:
    """What must be alike for a done cell to be taken over."""
    from vllm import __version__

    return {
        "seed": context.seed, "pairs": rounds, "quick": context.quick, "device": context.device, "vllm": __version__,
        "machine": platform.node(), "policies": [repr(one) for one in contenders],
    }  # fmt: skip


def _chosen(context: Context) -> tuple[list[Cell], tuple[Contender, ...], int]:
    names = context.options.get("cells")
    wanted = names.split(";") if names else None
    if wanted and (unknown := set(wanted) - {cell.name for cell in CELLS}):
        known = ", ".join(repr(cell.name) for cell in CELLS)
        raise ConfigurationError(f"no cell named {min(unknown)!r}; there are: {known}")
    cells = [cell for cell in CELLS if (cell.counts if wanted is None else cell.name in wanted)]
    contenders = _contenders(context.options.get("policies"))
    rounds = context.count("pairs", 2 if context.quick else LEAST_PAIRS)
    if context.quick:
        quick = [
            Cell("8 × 4k", 8, requests=32, output=32),
            Cell("no sharing, 1k", 0, prefix=1024, requests=24, output=32),
        ]
        return (quick if wanted is None else cells), _quick(contenders), rounds
    return cells, contenders, rounds


def _rounds(cell: Cell, rounds: int, quick: bool) -> int:
    return rounds if quick else max(rounds, cell.pairs)


def _quick(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """FEATHER's parts and the product; ceilings and noise take a whole run."""
    return tuple(one for one in contenders if one not in (*CEILINGS, *AGAIN))


def _contenders(labels: str | None) -> tuple[Contender, ...]:
    """Those always of whom the closing line's figures are, and the named ones."""
    if labels is None:
        return ALWAYS
    wanted, known = labels.split(";"), {one.label for one in CONTENDERS}
    if unknown := [label for label in wanted if label not in known]:
        raise ConfigurationError(f"no policy labelled {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    return tuple(one for one in CONTENDERS if one in ALWAYS or one.label in wanted)


def _model(folder: Path) -> Path:
    from plumage_engine.vllm.tiny_model import write_model

    return write_model(folder / "m8", size="m8")


def _cell(
    model: Path, cell: Cell, contenders: Sequence[Contender], rounds: int, context: Context, done: Any
) -> dict[str, list[Played]]:
    """Rounds in which each contender serves the same load, their order turned each time. In the first one only who
    learns plays, and it is not counted."""
    arguments = {
        "block_size": BLOCK, "num_gpu_blocks_override": cell.blocks, "max_model_len": 8192,
        "max_num_seqs": cell.batch, "max_num_batched_tokens": 8192, **plugin_arguments(OFF),
    }  # fmt: skip
    contenders = [one for one in contenders if not one.only or cell.name in one.only]
    played: dict[str, list[Played]] = {one.label: [] for one in contenders}
    with running(model, **arguments) as engine:
        bench = _Bench(engine, cell, contenders, work_clock(context.device))
        bench.warm()
        for turn in range(rounds + 1):
            for contender in _turned(contenders, turn):
                if turn or contender.learns:
                    result = bench.play(contender, context.seed * 1000 + turn)
                if turn:
                    played[contender.label].append(result)
            done(1)
    return played


def _turned(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    at = turn % len(contenders)
    return [*contenders[at:], *contenders[:at]]
