"""`vllm-feather`: FEATHER in real vLLM on a real device, end to end and part by part, against FCFS and the tree's
order.

On a CPU the model has 8 layers with 512 hidden units, in bf16, on one thread; on a GPU it has the shape of Llama 3 8B
and random weights (`model=` names another). `KV ÷ weights` is the ratio of bytes that a decode step of a full batch
reads; the gain of an order grows with it. Prompts have a shared prefix and their own tail, and greedy answers have a
fixed length. One engine serves all policies of a cell in turn, each with its own queue and learned state, so that the
two runs of a pair are only a minute apart. Before the pairs each policy that learns serves the load once.

On a GPU vLLM has its own asynchronous scheduling, its own KV memory, and CUDA graphs of decode steps; only
torch.compile is off. Cells have four times the batch and half as many requests again.

Each part of FEATHER has its own row. `FCFS` is vLLM without changes: its own queue and batch. `FCFS sorted` sorts the
running batch by prefix. `order` is ChtOrder, the tree's order without STOP, and `order sorted` the same with a sorted
batch. `bandit` also decides when to STOP. `bandit printed` and `Q-learning printed` are FEATHER's text (`form: Paper`);
they run if `policies=` names them. `product` is what the default manifest deploys. `one group` is the
homogeneous ceiling: the same requests, tails and lengths, but all with the first group's prefix, with each of the
orders. `FCFS again` ÷ FCFS and `order again` ÷ order are the noise. Most policies have an ageing bound that a slow
device does not reach, so that ratios compare orders. `product` and `bandit, 10 s` have a pool's bound. They show its
cost where requests wait longer than that in any case.

Closed: all requests wait from the start. Open: they arrive as a Poisson process with a rate that is too high for FCFS.
Figures are output tokens a second of the device's time. On a CPU that is the CPU time of the process, since other work
on the machine affects the wall clock more; on a GPU it is wall-clock time. Both are printed.

Two and three levels: pairs of groups, and pairs of pairs, have common prefixes. A step: requests first arrive slowly,
then faster than any policy can serve. `converged s` is the device's time from then until the rate is steady.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather.cells import BLOCK, CELLS, Cell, on_gpu, prompts
from plumage_bench.benches.vllm_feather.contenders import (
    AGAIN,
    ALWAYS,
    CEILINGS,
    CONTENDERS,
    FCFS,
    OFF,
    ORDER,
    Contender,
)
from plumage_bench.benches.vllm_feather.converging import seconds_to_converge
from plumage_bench.benches.vllm_feather.report import Played, cell_line, report
from plumage_bench.benches.vllm_feather.saved_cells import cell_from, plain_cell
from plumage_bench.device import CPU, work_clock
from plumage_bench.finished import Finished
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.vllm.engine import GPU_ARGUMENTS, Engine, plugin_arguments, prepare_environment, running
from plumage_bench.vllm.shapes import shape, write_shape

__all__ = ["run"]

_WINDOW = 2.0
"""Window, in seconds of the device, for a rate after a step: about 500 tokens."""


@dataclass(slots=True)
class _Timing:
    """For the requests of one run, by number: the times of arrival, first token and latest token; and all gaps between
    tokens."""

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
    """The engine of one cell, and each contender's queue in it."""

    def __init__(self, engine: Engine, cell: Cell, contenders: Sequence[Contender], device: str) -> None:
        from plumage.settings.plugin_config import PluginSettings
        from plumage_engine.vllm.compat.scheduler import FCFSRequestQueue
        from plumage_engine.vllm.feather import row_order
        from plumage_engine.vllm.features import Features

        self.engine, self.cell, self._clock = engine, cell, work_clock(device)
        self._lap = self._clock if device == CPU else time.perf_counter
        """The clock within a run: to wait for a GPU after each step would end its asynchronous scheduling."""
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
        if not self.cell.groups:
            self.engine.llm.reset_prefix_cache()  # all contenders of a round send the same prompts
        stops = features.counters.get("stops")
        load, rng = prompts(self.cell, seed, contender.homogeneous), random.Random(f"arrivals {seed}")
        timing, batches = _Timing(), list[int]()
        cpu, lap, began = self._clock(), self._lap(), time.perf_counter()
        due, number, change = 0.0, 0, 0.0
        times, made, last = [0.0], [0.0], 0.0
        while number < len(load) or self.engine.llm.has_unfinished_requests():
            while number < len(load) and time.perf_counter() - began >= due:
                self._submit(number, load[number], timing)
                number += 1
                faster = 1.0 if number < len(load) // 2 else self.cell.step
                due += rng.expovariate(self.cell.rate * faster) if self.cell.rate else 0.0
                change = self._lap() - lap if number == len(load) // 2 else change
            made.append(made[-1] + self._step(timing, batches))
            times.append(self._lap() - lap)
            if number < len(load) or len(self.engine.scheduler.waiting):
                last = times[-1]  # afterwards the batch becomes smaller
        spent, wall = self._clock() - cpu, time.perf_counter() - began
        tokens = self.cell.requests * self.cell.output
        stops = features.counters.get("stops") - stops
        settled = seconds_to_converge(times, made, change, last, _WINDOW) if self.cell.step != 1 else nan
        return Played(tokens, spent, wall, timing.waits(), tuple(timing.gaps), fmean(batches), stops, settled)

    def _led_by(self, contender: Contender) -> Any:
        """Give the engine this contender's queue and features, which learn from the steps."""
        features, self.engine.scheduler.waiting = self._parts[contender.label]
        self.engine.scheduler.plumage = features
        self._order.enabled = contender.sorts
        return features

    def warm(self) -> None:
        """Caches each prefix, if there is room for all. No policy sees these requests."""
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
        """Runs one step. Returns how many requests got a token."""
        outputs = self.engine.llm.step()
        now = time.perf_counter()
        for output in outputs:
            timing.token(output.request_id, now)
        if batch := max(
            len(self.engine.scheduler.running), len(outputs)
        ):  # requests with their last token have left already
            batches.append(batch)
        return len(outputs)


def run(context: Context) -> Report:
    """Cells × contenders, in interleaved rounds. Each cell is saved when it is complete."""
    prepare_environment()
    model = shape(context.options.get("model", "m8" if context.device == CPU else "llama-3-8b"))
    cells, contenders, rounds = _chosen(context)
    made_by = _made_by(context, model.name, rounds, contenders)
    finished = Finished(context.out / "vllm-feather.done.json", made_by, context.switch("resume"))
    played: dict[str, dict[str, list[Played]]] = {}
    total = sum(1 + _rounds(cell, rounds, context.quick) for cell in cells)
    with (
        TemporaryDirectory() as folder,
        _engines(Path(folder), write_shape(Path(folder), model)) as start,
        context.progress("vllm-feather", total) as done,
    ):
        for cell in cells:
            turns = _rounds(cell, rounds, context.quick)
            if (saved := finished.get(repr(cell))) is None:
                runs = _cell(start, cell, contenders, turns, context, done)
                finished.add(repr(cell), plain_cell(runs))
            else:
                runs = cell_from(saved)
                done(1 + turns)
            played[cell.name] = runs
            context.console.print(cell_line(cell, runs))
    return report(cells, contenders, played, model)


def _made_by(context: Context, model: str, rounds: int, contenders: Sequence[Contender]) -> dict[str, Any]:
    """The settings that must be equal so that a saved cell may be used."""
    from vllm import __version__

    return {
        "seed": context.seed, "pairs": rounds, "quick": context.quick, "device": context.device, "vllm": __version__,
        "model": model, "machine": platform.node(), "policies": [repr(one) for one in contenders],
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
        cells = quick if wanted is None else cells
        contenders = _quick(contenders)
    if context.device != CPU:
        cells = [on_gpu(cell) for cell in cells]
    return cells, contenders, rounds


def _rounds(cell: Cell, rounds: int, quick: bool) -> int:
    return rounds if quick else max(rounds, cell.pairs)


def _quick(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """FEATHER's parts and the product. Ceilings and noise need a full run."""
    return tuple(one for one in contenders if one not in (*CEILINGS, *AGAIN))


def _contenders(labels: str | None) -> tuple[Contender, ...]:
    """FEATHER's parts and the ceilings; or FCFS, the order and those that are named."""
    if labels is None:
        return ALWAYS
    wanted, known = labels.split(";"), {one.label for one in CONTENDERS}
    if unknown := [label for label in wanted if label not in known]:
        raise ConfigurationError(f"no policy labelled {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    return tuple(one for one in CONTENDERS if one in (FCFS, ORDER) or one.label in wanted)


@contextmanager
def _engines(folder: Path, load: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], Engine]]:
    """Yields a function that returns an engine with the given arguments. An engine is replaced only if the next cell
    needs other arguments."""
    now: tuple[dict[str, Any], Engine] | None = None
    with ExitStack() as stack:

        def start(arguments: dict[str, Any]) -> Engine:
            nonlocal now
            if now is None or now[0] != arguments:
                now = None
                stack.close()
                now = arguments, stack.enter_context(running(folder, **load, **arguments))
            return now[1]

        yield start


def _cell(
    start: Callable[[dict[str, Any]], Engine],
    cell: Cell,
    contenders: Sequence[Contender],
    rounds: int,
    context: Context,
    done: Any,
) -> dict[str, list[Played]]:
    """Rounds in which each contender serves the same load; their order rotates. In the first round
    only learning contenders run, and it is not counted."""
    arguments = {
        "block_size": BLOCK, "num_gpu_blocks_override": cell.blocks, "max_model_len": 8192,
        "max_num_seqs": cell.batch, "max_num_batched_tokens": 8192, **plugin_arguments(OFF),
    }  # fmt: skip
    if context.device != CPU:
        room = cell.room and cell.room * BLOCK // GPU_ARGUMENTS["block_size"]
        arguments |= {**GPU_ARGUMENTS, "num_gpu_blocks_override": room}
    contenders = [one for one in contenders if not one.only or cell.name in one.only]
    played: dict[str, list[Played]] = {one.label: [] for one in contenders}
    bench = _Bench(start(arguments), cell, contenders, context.device)
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
