"""The loads of `vllm-feather`: number of groups, length of their prefixes, levels of sharing, and arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import chain

__all__ = ["BLOCK", "CELLS", "TAIL", "Cell", "answers", "on_gpu", "prompts"]

BLOCK, TAIL = 128, 20


@dataclass(frozen=True, slots=True)
class Cell:
    """groups: each has one prefix of `prefix` tokens; 0: no two prompts share anything. rate: requests a second; None:
    closed. room: KV blocks; None: enough for all prefixes. counts: whether the closing line includes it; other cells
    run only by name. levels: parts of a prefix; all but the last are shared by two or four groups. step: factor of the
    rate from the middle request on. pairs: the least number of rounds, for cells whose bound is a result. outputs:
    least and most tokens of an answer, instead of `output`."""

    name: str
    groups: int
    prefix: int = 4096
    requests: int = 128
    output: int = 64
    batch: int = 16
    rate: float | None = None
    room: int | None = None
    counts: bool = True
    levels: int = 1
    step: float = 1.0
    pairs: int = 1
    outputs: tuple[int, int] | None = None

    @property
    def context(self) -> float:
        """Tokens of a request's context at the middle of its answer."""
        return self.prefix + TAIL + self.output / 2

    @property
    def blocks(self) -> int:
        """KV blocks of the engine: for the prefixes, and for the batch."""
        own = -(-(self.prefix + TAIL + self.output) // BLOCK) if not self.groups else 3
        return self.room or (max(self.groups, 1) * (self.prefix // BLOCK + 1) + (self.batch + 1) * own + 16)


CELLS = (
    Cell("8 × 4k", 8),
    Cell("1 × 4k", 1),
    Cell("4 × 4k", 4),
    Cell("16 × 4k", 16),
    Cell("8 × 4k, open", 8, rate=8.0),
    Cell("1 × 4k, open", 1, rate=8.0),
    Cell("4 × 4k, open", 4, rate=8.0),
    Cell("16 × 4k, open", 16, rate=8.0),
    Cell("no sharing, 1k", 0, prefix=1024, requests=32, output=32, pairs=20),
    Cell("20 × 4k, room for 4", 20, requests=96, room=4 * 33 + 3 * 17 + 66),
    Cell("32 × 4k", 32, counts=False),
    Cell("8 × 2k", 8, prefix=2048, counts=False),
    Cell("8 × 4k, batch 32", 8, batch=32, counts=False),
    Cell("8 × 4k, 1 token", 8, output=1, counts=False),
    Cell("8 × 4k, 20 tokens", 8, output=20, counts=False),
    Cell("8 × 4k, two levels", 8, levels=2, counts=False),
    Cell("8 × 4k, three levels", 8, levels=3, counts=False),
    Cell("8 × 4k, step", 8, requests=192, rate=2.0, step=8.0, counts=False),
)


def on_gpu(cell: Cell) -> Cell:
    """The cell with a GPU's batch: four times as many requests run at a time, and half as many again arrive. A GPU's
    clock needs no more rounds where nothing is shared."""
    return replace(cell, batch=4 * cell.batch, requests=max(3 * cell.requests // 2, 6 * cell.batch), pairs=1)


def prompts(cell: Cell, seed: int, homogeneous: bool = False) -> list[tuple[int, tuple[int, ...]]]:
    """(group, tokens) in order of arrival. Prefixes belong to the cell and are equal for all seeds; tails belong to the
    seed. homogeneous: all of the first group."""
    rng = random.Random(f"{cell.name} {seed}")
    shared = _prefixes(cell)
    order = [number % cell.groups if cell.groups else number for number in range(cell.requests)]
    rng.shuffle(order)
    made = []
    for drawn in order:
        group = 0 if homogeneous else drawn
        prefix = shared[group] if shared else tuple(rng.choices(range(256), k=cell.prefix))
        made.append((group, prefix + tuple(rng.choices(range(256), k=TAIL))))
    return made


def answers(cell: Cell, seed: int) -> list[int]:
    """Tokens of each answer, in order of arrival."""
    if cell.outputs is None:
        return [cell.output] * cell.requests
    rng = random.Random(f"answers {cell.name} {seed}")
    return [rng.randint(*cell.outputs) for _ in range(cell.requests)]


def _prefixes(cell: Cell) -> list[tuple[int, ...]]:
    """The prefix of each group, in parts of whole blocks. Of three parts the first is shared by four groups, the second
    by two."""
    fixed = random.Random(f"prefixes {cell.groups} {cell.prefix}")
    blocks = cell.prefix // BLOCK
    sizes = [BLOCK * (blocks // cell.levels)] * (cell.levels - 1)
    sizes.append(cell.prefix - sum(sizes))
    parts: dict[tuple[int, int], tuple[int, ...]] = {}
    for group in range(cell.groups):
        for level, size in enumerate(sizes):
            name = level, group >> (cell.levels - 1 - level)
            if name not in parts:
                parts[name] = tuple(fixed.choices(range(256), k=size))
    own = (
        [(level, group >> (cell.levels - 1 - level)) for level in range(cell.levels)] for group in range(cell.groups)
    )
    return [tuple(chain.from_iterable(parts[name] for name in names)) for names in own]
