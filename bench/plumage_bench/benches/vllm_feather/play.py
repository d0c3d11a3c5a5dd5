"""Plays the loads of a cell in real vLLM: one engine serves all contenders in turn, each with its own queue."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from plumage_bench.benches.vllm_feather.cells import BLOCK, Cell, answers, prompts
from plumage_bench.benches.vllm_feather.contenders import FCFS, OFF, Contender
from plumage_bench.benches.vllm_feather.converging import seconds_to_converge
from plumage_bench.benches.vllm_feather.report import Played
from plumage_bench.device import CPU, work_clock
from plumage_bench.harness import Context
from plumage_bench.vllm.engine import GPU_ARGUMENTS, Engine, plugin_arguments, running

__all__ = ["Bench", "engines", "play_cell"]

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


class Bench:
    """The engine of one cell, and each contender's queue in it."""

    def __init__(self, engine: Engine, cell: Cell, contenders: Sequence[Contender], device: str) -> None:
        from plumage.settings.plugin_config import PluginSettings
        from plumage_engine.vllm.compat.scheduler import FCFSRequestQueue
        from plumage_engine.vllm.eviction.ordered_pool import OrderedPool
        from plumage_engine.vllm.feather import row_order
        from plumage_engine.vllm.features import Features

        self.engine, self.cell, self._clock = engine, cell, work_clock(device)
        self._lap = self._clock if device == CPU else time.perf_counter
        """The clock within a run: to wait for a GPU after each step would end its asynchronous scheduling."""
        self._order = row_order
        self._parts: dict[str, tuple[Any, Any]] = {}
        self._limits: dict[str, int] = {}  # of running requests, by contender: each has an adaptive limit of its own
        self._leads = FCFS.label
        engine.scheduler.max_num_active_reqs = cell.batch  # another cell may have lowered it
        for contender in {one.label: one for one in (FCFS, *contenders)}.values():  # `warm` needs FCFS
            engine.scheduler.waiting = FCFSRequestQueue()
            # The engine has ordered its eviction already, for all contenders.
            settings = PluginSettings.model_validate({**contender.settings(), "eviction": None})
            features = Features(engine.scheduler, settings)
            guard = features.guards.get("feather")
            if contender.orders and (guard is None or not guard.on):
                raise RuntimeError(f"{contender.label} is off: {guard.reason if guard else 'no guard'}")
            self._parts[contender.label] = (features, engine.scheduler.waiting)
        pool = engine.scheduler.kv_cache_manager.block_pool
        if FCFS.settings()["eviction"] is not None and not isinstance(pool, OrderedPool):
            raise RuntimeError("the engine does not evict as the default manifest does: its log has the reason")

    def play(self, contender: Contender, seed: int) -> Played:
        """Serve the cell's load once under `contender`."""
        features = self._led_by(contender)
        if not self.cell.groups:
            self.engine.llm.reset_prefix_cache()  # all contenders of a round send the same prompts
        stops = features.counters.get("stops")
        load, rng = prompts(self.cell, seed, contender.homogeneous), random.Random(f"arrivals {seed}")
        wanted = answers(self.cell, seed)
        timing, batches = _Timing(), list[int]()
        cpu, lap, began = self._clock(), self._lap(), time.perf_counter()
        due, number, change, before = 0.0, 0, 0.0, 0.0
        times, made, last = [0.0], [0.0], 0.0
        while number < len(load) or self.engine.llm.has_unfinished_requests():
            while number < len(load) and time.perf_counter() - began >= due:
                self._submit(number, load[number], timing, wanted[number])
                number += 1
                faster = 1.0 if number < len(load) // 2 else self.cell.step
                due += rng.expovariate(self.cell.rate * faster) if self.cell.rate else 0.0
                if number == len(load) // 2:
                    change, before = self._lap() - lap, made[-1]
            if not self.engine.llm.has_unfinished_requests():
                time.sleep(max(0.0, began + due - time.perf_counter()))  # to poll an idle engine would count as work
                continue
            made.append(made[-1] + self._step(timing, batches))
            times.append(self._lap() - lap)
            if number < len(load) or len(self.engine.scheduler.waiting):
                last = times[-1]  # afterwards the batch becomes smaller
        spent, wall = self._clock() - cpu, time.perf_counter() - began
        tokens = sum(wanted)
        stops = features.counters.get("stops") - stops
        settled, after = nan, nan
        if self.cell.step != 1:
            settled = seconds_to_converge(times, made, change, last, _WINDOW)
            after = (made[-1] - before) / (times[-1] - change)
        return Played(tokens, spent, wall, timing.waits(), tuple(timing.gaps), fmean(batches), stops, settled, after)

    def _led_by(self, contender: Contender) -> Any:
        """Give the engine this contender's queue and features, which learn from the steps."""
        scheduler = self.engine.scheduler
        self._limits[self._leads], self._leads = scheduler.max_num_active_reqs, contender.label
        scheduler.max_num_active_reqs = self._limits.get(contender.label, self.cell.batch)
        features, scheduler.waiting = self._parts[contender.label]
        scheduler.plumage = features
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

    def _submit(self, number: int, prompt: tuple[int, tuple[int, ...]], timing: _Timing, output: int) -> None:
        from vllm import SamplingParams

        group, tokens = prompt
        wanted = SamplingParams(
            max_tokens=output, temperature=0.0, ignore_eos=True, detokenize=False,
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
        # Requests with their last token have left already.
        if batch := max(len(self.engine.scheduler.running), len(outputs)):
            batches.append(batch)
        return len(outputs)


@contextmanager
def engines(folder: Path, load: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], Engine]]:
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


def play_cell(
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
    bench = Bench(start(arguments), cell, contenders, context.device)
    bench.warm()
    for turn in range(rounds + 1):
        for contender in turned(contenders, turn):
            if turn or contender.learns:
                result = bench.play(contender, context.seed * 1000 + turn)
            if turn:
                played[contender.label].append(result)
        done(1)
    return played


def turned(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    at = turn % len(contenders)
    return [*contenders[at:], *contenders[:at]]
