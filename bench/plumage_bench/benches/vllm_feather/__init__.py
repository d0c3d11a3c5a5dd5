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
they run if `policies=` names them. `product` has the default manifest's order. `one group` is the
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
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather.cells import CELLS, Cell, on_gpu
from plumage_bench.benches.vllm_feather.contenders import AGAIN, ALWAYS, CEILINGS, CONTENDERS, FCFS, ORDER, Contender
from plumage_bench.benches.vllm_feather.play import engines, play_cell
from plumage_bench.benches.vllm_feather.report import Played, cell_line, report
from plumage_bench.benches.vllm_feather.saved_cells import cell_from, plain_cell
from plumage_bench.device import CPU
from plumage_bench.finished import Finished
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.vllm.engine import prepare_environment
from plumage_bench.vllm.shapes import shape, write_shape

__all__ = ["run"]


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
        engines(Path(folder), write_shape(Path(folder), model)) as start,
        context.progress("vllm-feather", total) as done,
    ):
        for cell in cells:
            turns = _rounds(cell, rounds, context.quick)
            if (saved := finished.get(repr(cell))) is None:
                runs = play_cell(start, cell, contenders, turns, context, done)
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
