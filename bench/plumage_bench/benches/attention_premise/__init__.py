"""`attention-premise`: is decoding cheaper for a batch that shares its prefix than for one with different prefixes?

FEATHER assumes this. Requests of one group read the same keys and values, which then are in the hardware's caches. A
mixed batch reads the keys and values of each request from memory. The benchmark runs no scheduler and no model. It
computes one decode step's attention of a batch, through the keys and values of 8 layers in turn; all prefixes have the
same length. With vLLM it runs vLLM's own kernel over paged blocks, on a GPU FlashAttention. Otherwise it runs torch's
attention over contiguous prefixes, which reads the same bytes without a block table. All cases compute the same bits
(`wrong` counts differences), since only the place of the prefixes differs.

`different ÷ shared` is the time of a step over different prefixes, relative to a shared one. It is the largest gain of
an order of requests if there were only attention. A model's other layers and the prompts' own tails reduce it. `mixed ÷
adjacent` is the largest gain of sorting the rows of a batch of eight prefixes (`orderBatch`). `shared ÷ shared` is the
noise. On a CPU the time is the CPU time of the process, on a GPU the wall-clock time until the device
is done.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from plumage_bench.benches.attention_premise.kernels import (
    ADJACENT,
    DIFFERENT,
    INTERLEAVED,
    SHAPES,
    SHARED,
    Shape,
    Step,
    make_step,
)
from plumage_bench.device import CPU, work_clock
from plumage_bench.harness import Context, Figure, Report, ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["PAIRS", "PAIRS_QUICK", "Cell", "run"]

PAIRS, PAIRS_QUICK = 20, 5
_PREFIXES, _PREFIXES_QUICK = (1024, 2048, 4096, 8192), (1024, 4096)
_BATCHES = {CPU: (4, 16), "cuda": (16, 64)}
_AGAIN = "again"
_REPORTED_PREFIX = 4096
"""The prefix length, in tokens, that the closing line reports for the largest batch; a group of `vllm-feather` has
it."""


@dataclass(slots=True)
class Cell:
    """seconds: of a step, by case, pair by pair. again: the shared prefix measured a second time."""

    batch: int
    prefix: int
    kernel: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0

    def ratio(self, over: str, under: str = SHARED) -> PairedRatio:
        return paired_ratio(self.seconds[over], self.seconds[under])


def run(context: Context) -> Report:
    """Measures all batch sizes and prefix lengths, in interleaved rounds."""
    import torch

    shape, batches = SHAPES[context.device], _BATCHES[context.device]
    prefixes, pairs = (_PREFIXES_QUICK, PAIRS_QUICK) if context.quick else (_PREFIXES, PAIRS)
    torch.manual_seed(context.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the device whose time the clock measures
    try:
        with context.progress(context.name, len(batches) * len(prefixes)) as done:
            cells = []
            for batch in batches:
                for prefix in prefixes:
                    cells.append(_measure(context, shape, batch, prefix, pairs))
                    done(1)
    finally:
        torch.set_num_threads(threads)
    return _report(cells, shape)


def _measure(context: Context, shape: Shape, batch: int, prefix: int, pairs: int) -> Cell:
    kernel, cases, step = make_step(context.device, shape, batch, prefix)
    cell, order = Cell(batch, prefix, kernel), random.Random(f"{context.seed} {batch} {prefix}")
    results = [step(case) for case in cases]
    cell.wrong = sum(
        not bool((one == other).all()) for case in results[1:] for one, other in zip(results[0], case, strict=True)
    )
    turns = [*cases, _AGAIN]
    cell.seconds = {case: [] for case in turns}
    for _ in range(pairs):
        order.shuffle(turns)
        for case in turns:
            cell.seconds[case].append(_seconds(context.device, step, SHARED if case == _AGAIN else case))
    return cell


def _seconds(device: str, step: Step, case: str) -> float:
    clock = work_clock(device)
    began = clock()
    step(case)
    return clock() - began


def _report(cells: Sequence[Cell], shape: Shape) -> Report:
    ratios = [(cell, cell.ratio(DIFFERENT), cell.ratio(_AGAIN)) for cell in cells]
    rows: list[list[Figure]] = [
        [
            cell.kernel, cell.batch, cell.prefix, shape.prefix_bytes(cell.prefix) / 2**20,
            median(cell.seconds[SHARED]) * 1e3, median(cell.seconds[DIFFERENT]) * 1e3, str(ratio), _sorted(cell),
            str(noise), cell.wrong,
        ]
        for cell, ratio, noise in ratios
    ]  # fmt: skip
    columns = (
        "kernel", "batch", "prefix", "MiB a layer", "shared ms", "different ms", "different ÷ shared",
        "mixed ÷ adjacent", "shared ÷ shared", "wrong",
    )  # fmt: skip
    notes = (
        f"One decode step's attention, bf16: {shape.heads} heads over {shape.kv_heads} of {shape.head_size}, "
        f"{shape.layers} layers in turn. MiB: one prefix in one layer."
    )
    reported, ratio, noise = max(
        (one for one in ratios if one[0].prefix == _REPORTED_PREFIX), key=lambda one: one[0].batch
    )
    keys = {
        "different_over_shared": ratio.ratio, "low": ratio.low, "noise": noise.ratio,
        "batch": reported.batch, "prefix": reported.prefix, "wrong": sum(cell.wrong for cell in cells),
    }  # fmt: skip
    table = ResultTable("Decode attention: one shared prefix, or one each", columns, rows, notes)
    if INTERLEAVED in reported.seconds:
        keys["mixed_over_adjacent"] = reported.ratio(INTERLEAVED, ADJACENT).ratio
    data = {"seconds": [{"batch": one.batch, "prefix": one.prefix, **one.seconds} for one in cells]}
    return Report(keys, (table,), lambda figure: _plot(figure, ratios), data)


def _sorted(cell: Cell) -> str:
    return str(cell.ratio(INTERLEAVED, ADJACENT)) if INTERLEAVED in cell.seconds else ""


def _plot(figure: Any, ratios: Sequence[tuple[Cell, PairedRatio, PairedRatio]]) -> None:
    axis = figure.subplots()
    for batch in sorted({cell.batch for cell, _, _ in ratios}):
        of_it = [(cell.prefix, ratio) for cell, ratio, _ in ratios if cell.batch == batch]
        spread = [[ratio.ratio - ratio.low for _, ratio in of_it], [ratio.high - ratio.ratio for _, ratio in of_it]]
        axis.errorbar([at for at, _ in of_it], [ratio.ratio for _, ratio in of_it], yerr=spread, marker="o",
                      capsize=3, label=f"batch of {batch}")  # fmt: skip
    axis.axhline(1.0, color="grey", linewidth=0.8)
    axis.set(xlabel="tokens of the prefix", ylabel="different ÷ shared, time of a step", xscale="log")
    lengths = sorted({cell.prefix for cell, _, _ in ratios})
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.legend()
