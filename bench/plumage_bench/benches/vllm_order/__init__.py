"""`vllm-order`: which group is next and when to switch, in real vLLM: the default manifest's order ÷ known groups.

The cells are those in which FEATHER's order alone was not enough: prefixes of two and three levels, answers of unequal
lengths, a step of the rate, and a cache with room for a fifth of the prefixes. Engine, clock, prompts and pairs are as
in `vllm-feather`.

`product` is the default manifest. All contenders have its eviction and batch limit, and the others an ageing bound that
is not reached. `order` is the tree's order, `predictive` stops by a fit of the step time, `marginal` while
the batch decodes faster than a mixed one. `oracle` gets each request's group from the client, serves one group at a
time, and the fullest one next. With several levels it knows the deepest one only.
`DFS-W` sorts the queue by the weight of branches, `LPM` by the cached prefix. `one group` has the same requests, all
with one prefix: the ceiling where prefixes have several levels.

`over_oracle` is the product ÷ the oracle, the least of the cells. In the cell with a step the rates count from the step
on. Before it nothing waits, and an oracle that keeps requests back saves the device's time at their cost.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumage_bench.benches.vllm_feather.contenders import Contender
from plumage_bench.benches.vllm_feather.play import engines, play_cell
from plumage_bench.benches.vllm_feather.report import Played
from plumage_bench.benches.vllm_feather.saved_cells import cell_from, plain_cell
from plumage_bench.benches.vllm_order.loads import CELLS, CONTENDERS, QUICK_CELLS, QUICK_CONTENDERS, Cell, chosen
from plumage_bench.benches.vllm_order.report import line, report
from plumage_bench.finished import Finished
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.vllm.engine import prepare_environment
from plumage_bench.vllm.shapes import shape, write_shape

__all__ = ["run"]


def run(context: Context) -> Report:
    """Cells × contenders, in interleaved rounds. Each cell is saved when it is complete."""
    prepare_environment()
    cells: Sequence[Cell] = chosen("cell", QUICK_CELLS if context.quick else CELLS, context.options.get("cells"))
    contenders: Sequence[Contender] = QUICK_CONTENDERS if context.quick else CONTENDERS
    model, rounds = shape("m8"), context.count("pairs", LEAST_PAIRS)
    made_by = _made_by(context, rounds, contenders)
    finished = Finished(context.out / "vllm-order.done.json", made_by, context.switch("resume"))
    played: dict[str, dict[str, list[Played]]] = {}
    with (
        TemporaryDirectory() as folder,
        engines(Path(folder), write_shape(Path(folder), model)) as start,
        context.progress("vllm-order", len(cells) * (1 + rounds)) as done,
    ):
        for cell in cells:
            if (saved := finished.get(repr(cell))) is None:
                runs = play_cell(start, cell, contenders, rounds, context, done)
                finished.add(repr(cell), plain_cell(runs))
            else:
                runs = cell_from(saved)
                done(1 + rounds)
            played[cell.name] = runs
            context.console.print(line(cell, runs))
    return report(cells, contenders, played)


def _made_by(context: Context, rounds: int, contenders: Sequence[Contender]) -> dict[str, Any]:
    """The settings that must be equal so that a saved cell may be used."""
    from vllm import __version__

    return {
        "seed": context.seed, "pairs": rounds, "quick": context.quick, "vllm": __version__, "machine": platform.node(),
        "policies": [repr(one) for one in contenders],
    }  # fmt: skip
