"""`flood`: a tenant sends prompts of its own only. What does it cost the hits of eight neighbours?

Four workers serve the neighbours' conversations, at a quarter of the rate that cold caches could just serve. The flood
sends prompts of 4,096 tokens that nobody repeats: as many tokens a second as the neighbours, or twice as many. Neither
load is an overload, so what the neighbours lose, they lose by eviction, and by the blocks of the flood's running
requests. All conversations fit the caches (`roomy`), or two thirds of them (`tight`).

Requests carry the salt of their tenant, as the router adds it. `no salts` has the same policies without them, so that
eviction does not know the tenants. `flood evicted first` shows the best that eviction can do: it is given the flood's
name. `neighbour_loss` is 1 − the neighbours' hit ratio with the flood ÷ without it, paired by seed, of the cell that
loses most. The hit ratio is over the second half of the time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from statistics import fmean
from typing import Any, Final

from plumage_bench.baselines.eviction import path
from plumage_bench.baselines.eviction.flood_first import FLOOD
from plumage_bench.harness import Context, Figure, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.parallel import in_parallel
from plumage_bench.virtual_time.fleet import run_fleet
from plumage_bench.workloads import Arrival, BlockNames, MultiturnShape, OpenLoop, Prompt, conversations
from plumage_engine.simulator.engine.device import GPU
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["CELLS", "CONTENDERS", "Cell", "Contender", "Mixed", "hit_ratio", "run"]

BLOCK: Final = 16
WORKERS: Final = 4
TENANTS: Final = 8
PROMPT: Final = 4096  # tokens of one of the flood's
ANSWER: Final = 128
SECONDS: Final = 400.0
LOAD: Final = 0.25  # of what cold caches could just serve
_SHAPE: Final = MultiturnShape(input_tokens=600, output_tokens=200, system_tokens=2048, block_size=BLOCK)


@dataclass(frozen=True, slots=True)
class Cell:
    """clients: of all neighbours at one time. flood: its prompt tokens a second ÷ the neighbours'."""

    name: str
    clients: int
    flood: float


CELLS: Final = (
    Cell("roomy, as much", 160, 1.0),
    Cell("roomy, twice", 160, 2.0),
    Cell("tight, as much", 320, 1.0),
    Cell("tight, twice", 320, 2.0),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """eviction: None for the manifest's. salted: requests carry their tenant's salt. baseline: the eviction that
    replaces it in the engine, which no manifest can name."""

    label: str
    eviction: str | None = None
    salted: bool = True
    baseline: str | None = None

    def engine(self) -> EngineSettings:
        made = self.ours().engine()
        return made if self.baseline is None else replace(made, eviction=path(self.baseline), eviction_options={})

    def ours(self) -> Ours:
        return Ours(
            {
                "engine.simulator.blockSize": BLOCK,
                **({} if self.eviction is None else {"engine.eviction.policy": self.eviction}),
            }
        )


CONTENDERS: Final = (
    Contender("Plumage"),
    Contender("Plumage, no salts", salted=False),
    Contender("flood evicted first", baseline="FloodFirst"),
    Contender("LRU", "Lru"),
    Contender("RLT", "Rlt"),
)


class Mixed:
    """The neighbours' conversations, and the flood's prompts, which wait for nobody. A source of a fleet.

    clients: conversations at one time. A client sends its next round a random time after its answer; `think` is the
    mean, in seconds. When a conversation has ended, its client begins the next one.
    """

    def __init__(
        self, rounds: Sequence[Sequence[Prompt]], clients: int, think: float, flood: OpenLoop, seed: int
    ) -> None:
        self._rounds, self._flood, self._think = rounds, flood, think
        self._rng = random.Random(f"flood arrivals {seed}")
        self._under_way = [iter(one) for one in rounds[:clients]]
        self._next = iter(rounds[clients:])

    def initial(self) -> Iterator[Arrival]:
        first = sorted((self._later(client, 0.0) for client in range(len(self._under_way))), key=lambda one: one.at)
        moved = (replace(one, client=one.client + len(self._under_way)) for one in self._flood.initial())
        return merge(first, moved, key=lambda one: one.at)

    def after(self, client: int, now: float) -> Arrival | None:
        return self._later(client, now) if client < len(self._under_way) else None

    def _later(self, client: int, now: float) -> Arrival:
        at = now + self._rng.expovariate(1.0 / self._think)
        prompt = next(self._under_way[client], None)
        if prompt is None:
            self._under_way[client] = iter(next(self._next))
            prompt = next(self._under_way[client])
        return Arrival(at, prompt, client)

    def __len__(self) -> int:
        return sum(len(one) for one in self._rounds) + len(self._flood)


def run(context: Context) -> Report:
    """Options: pairs."""
    pairs = context.count("pairs", LEAST_PAIRS)
    cells = CELLS[1:3] if context.quick else CELLS
    contenders = CONTENDERS[:3] if context.quick else CONTENDERS
    seeds = [context.seed + offset for offset in range(pairs)]
    calls = [
        (contender, cell, seed, flooded)
        for seed in seeds for cell in cells for contender in contenders for flooded in (False, True)
    ]  # fmt: skip
    with context.progress("flood", len(calls)) as advance:
        found = dict(zip(calls, in_parallel(hit_ratio, calls, advance), strict=True))
    kept = {
        (contender.label, cell.name): paired_ratio(
            [found[contender, cell, seed, True] for seed in seeds],
            [found[contender, cell, seed, False] for seed in seeds],
        )
        for contender in contenders for cell in cells
    }  # fmt: skip
    before = {key: fmean(found[one, cell, seed, False] for seed in seeds)
              for one in contenders for cell in cells for key in [(one.label, cell.name)]}  # fmt: skip
    return _report(kept, before, [one.label for one in contenders], [cell.name for cell in cells])


def hit_ratio(contender: Contender, cell: Cell, seed: int, flooded: bool) -> float:
    """The neighbours', with or without the flood. Their conversations are the same in both."""
    rounds, rate = _neighbours(cell, seed, contender.salted)
    mean = fmean(prompt.tokens for one in rounds for prompt in one)
    flood = _flood(rate * mean * cell.flood / PROMPT if flooded else 0.0, seed, contender.salted)
    fleet = run_fleet(
        [contender.engine()] * WORKERS,
        contender.ours().routing_policy(random.Random(f"policy-{seed}")),
        Mixed(rounds, cell.clients, cell.clients / rate, flood, seed),
        seed=seed,
        until=SECONDS,
    )
    measured = [
        one for one in fleet.served
        if one.arrival.client < cell.clients and one.arrival.at > SECONDS / 2.0 and one.first_token == one.first_token
    ]  # fmt: skip
    return sum(one.cached_tokens for one in measured) / sum(one.arrival.prompt.tokens for one in measured)


def _neighbours(cell: Cell, seed: int, salted: bool) -> tuple[list[list[Prompt]], float]:
    """The tenants' conversations in the order in which their clients begin, and their rate of requests."""
    each = [prompt.tokens for one in conversations(replace(_SHAPE, clients=64), 0) for prompt in one]
    cold = sum(tokens * GPU.row + tokens**2 / 2 * GPU.pair for tokens in each) / len(each)
    rate = LOAD * WORKERS / cold
    fewest = min(_SHAPE.rounds)
    count = -(-(int(2 * rate * SECONDS / fewest) + cell.clients) // TENANTS)
    made: list[list[Prompt]] = []
    for tenant in range(TENANTS):
        of_tenant = conversations(replace(_SHAPE, clients=count), 1000 * seed + tenant)
        owner = f"tenant {tenant}" if salted else None
        made += [[replace(prompt, owner=owner) for prompt in one] for one in of_tenant]
    rng = random.Random(f"flood {seed}")
    rng.shuffle(made)
    # The first clients are in the middle of their conversations, so they need not get out of step first.
    return [one[rng.randrange(len(one)) :] if place < cell.clients else one for place, one in enumerate(made)], rate


def _flood(rate: float, seed: int, salted: bool) -> OpenLoop:
    names = BlockNames(random.Random(f"flood prompts {seed}"), BLOCK)
    owner = FLOOD if salted else None
    prompts = [
        Prompt(PROMPT, names.stretch(PROMPT), ANSWER, number, owner=owner) for number in range(int(rate * SECONDS))
    ]
    return OpenLoop(prompts, rate or 1.0, seed)


def _report(
    kept: Mapping[tuple[str, str], PairedRatio],
    before: Mapping[tuple[str, str], float],
    labels: Sequence[str],
    cells: Sequence[str],
) -> Report:
    def worst(label: str) -> PairedRatio:
        return min((kept[label, cell] for cell in cells), key=lambda one: one.ratio)

    ours = worst("Plumage")
    keys: dict[str, Figure] = {
        "neighbour_loss": 1.0 - ours.ratio,
        "neighbour_loss_low": 1.0 - ours.high,
        "neighbour_loss_high": 1.0 - ours.low,
        "neighbour_loss_pairs": ours.pairs,
        "neighbour_loss_no_salts": 1.0 - worst("Plumage, no salts").ratio,
        "neighbour_loss_best_eviction": 1.0 - worst("flood evicted first").ratio,
        **{f"loss_{cell.replace(', ', '_').replace(' ', '_')}": 1.0 - kept["Plumage", cell].ratio for cell in cells},
    }
    rows: list[list[int | float | str]] = [
        [label, cell, round(before[label, cell], 4), str(kept[label, cell])] for cell in cells for label in labels
    ]
    table = ResultTable(
        "Neighbours' hit ratio: alone, and with the flood ÷ alone",
        ("contender", "cell", "alone", "with the flood ÷ alone"),
        rows,
        f"{ours.pairs} pairs a cell. Virtual time, the simulator's gpu preset.",
    )
    return Report(keys, [table], lambda figure: _plot(figure, kept, labels, cells), {"cells": list(cells)})


def _plot(
    figure: Any, kept: Mapping[tuple[str, str], PairedRatio], labels: Sequence[str], cells: Sequence[str]
) -> None:
    axes = figure.subplots()
    width = 0.8 / len(labels)
    for index, label in enumerate(labels):
        places = [place + index * width for place in range(len(cells))]
        axes.bar(places, [1.0 - kept[label, cell].ratio for cell in cells], width, label=label)
    axes.axhline(0.05, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xticks=[place + 0.4 for place in range(len(cells))], xticklabels=list(cells), ylabel="hits lost")
    axes.legend(fontsize="small")
