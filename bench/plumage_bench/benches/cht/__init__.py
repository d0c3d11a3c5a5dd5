"""`cht`: the cost of the Chunked Hash Tree (FEATHER Table 5.1), and whether siblings raise it.

The workload is the paper's: 5,000 requests × 5,000 tokens in prefix groups. Each is inserted, added and finished once,
FINDBEST is called 26,405 times, and chunks have 64 tokens. The paper's C++ takes 1.19 s in total and 0.426 s without
INSERT, on its own machine. So the figures here can not be compared with it directly. Tokens are 32-bit buffers, as the
paper's vectors are.

Here as in the paper, FINDBEST's answer is cached until the next mutation. The loop calls it once for each admission.
The rest of the 26,405 calls are repeats at the end of a step, as by a scheduler that checks its queue several times
before it decides to STOP. Calls that are left over come at the end, when no request waits. The table and the JSON have
the number of answers from the cache, and their kind.

There are three seeds. Each has its own prompts, and the median of its runs counts. The closing line has the median of
the seeds.
"""

from __future__ import annotations

import gc
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from plumage.batching.interface import Candidate
from plumage.batching.tree import Best, ChunkedHashTree
from plumage.hashing.token_vectors import chained, incremental
from plumage_bench.benches.cht.reference_tree import ReferenceTree
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["run"]

REQUESTS, TOKENS, GROUPS, FIND_BEST = 5_000, 5_000, 5, 26_405
CHUNK, CHUNKS = 64, (1, 16, 64, 128, 256)
MAX_BATCH, MAX_LOSS, FINISHED_A_STEP, LOOKS_A_STEP = 500, 5, 25, 3
PAPER_MICROS = {"INSERT": 153.7, "ADD": 11.1, "FINISH": 39.0, "FINDBEST": 6.6}
FEW, MANY = 500, 50_000
SEEDS = 3


@dataclass(slots=True)
class Timing:
    """Seconds and calls of each operation. The hashing of INSERT is counted separately."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("HASH", *PAPER_MICROS), 0.0))
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("HASH", *PAPER_MICROS), 0))
    asked_again: int = 0  # FINDBEST repeated at the end of a step, answered from the cache
    padding: int = 0  # FINDBEST called at the end, to reach the paper's number, also answered from the cache

    @property
    def from_cache(self) -> int:
        return self.asked_again + self.padding

    @property
    def operations(self) -> float:
        """Seconds of everything but INSERT and its hashing."""
        return sum(self.seconds[name] for name in ("ADD", "FINISH", "FINDBEST"))

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def take(self, name: str, started: float) -> None:
        self.seconds[name] += perf_counter() - started
        self.calls[name] += 1


def prompts(requests: int, tokens: int, rng: random.Random) -> list[array[int]]:
    """Prompts of `tokens` tokens, of which nine tenths are shared within a group."""
    shared = tokens * 9 // 10
    heads = [array("I", rng.choices(range(32_000), k=shared)) for _ in range(GROUPS)]
    return [rng.choice(heads) + array("I", rng.choices(range(32_000), k=tokens - shared)) for _ in range(requests)]


def replay(requests: Sequence[array[int]], chunk: int, questions: int, rng: random.Random) -> Timing:
    """Insert everything, then form and finish batches until nothing is left. Times each call."""
    timing, tree = Timing(), ChunkedHashTree()
    for number, tokens in enumerate(requests):
        started = perf_counter()
        vector = incremental(tokens, chunk)
        timing.take("HASH", started)
        started = perf_counter()
        tree.insert(Candidate(number, vector, len(tokens), float(number)))
        timing.take("INSERT", started)
    _serve(tree, timing, questions, rng)
    return timing


def _serve(tree: ChunkedHashTree, timing: Timing, questions: int, rng: random.Random) -> None:
    active: list[Any] = []
    while tree.waiting or active:
        _admit(tree, timing, active)
        for _ in range(min(FINISHED_A_STEP, len(active))):
            done = active.pop(rng.randrange(len(active)))
            started = perf_counter()
            tree.finish(done)
            timing.take("FINISH", started)
        again = LOOKS_A_STEP if tree.waiting else 0
        for repeat in range(again):
            timing.asked_again += repeat > 0
            _ask(tree, timing)
    while timing.calls["FINDBEST"] < questions:
        timing.padding += 1
        _ask(tree, timing)


def _admit(tree: ChunkedHashTree, timing: Timing, active: list[Any]) -> None:
    """Add requests while the loss is small. A request with another prefix ends the step, as a stop policy would."""
    while len(active) < MAX_BATCH and (best := _ask(tree, timing)) is not None:
        if active and best.loss > MAX_LOSS:
            return
        started = perf_counter()
        tree.add(best.request_id)
        timing.take("ADD", started)
        active.append(best.request_id)


def _ask(tree: ChunkedHashTree, timing: Timing) -> Best | None:
    started = perf_counter()
    best = tree.find_best()
    timing.take("FINDBEST", started)
    return best


def sibling_cost(siblings: int, rounds: int, chunks: int) -> tuple[float, float]:
    """Nodes visited and seconds for one FINDBEST + ADD + FINISH + INSERT while `siblings` requests wait below one
    prefix."""
    tree, stem = ChunkedHashTree(), tuple(range(1, chunks + 1))
    vectors = [(*stem, 10**9 + number) for number in range(siblings + rounds)]
    for number in range(siblings):
        tree.insert(Candidate(number, vectors[number], 64 * chunks, float(number)))
    visits, started = tree.visits, perf_counter()
    for number in range(siblings, siblings + rounds):
        best = tree.find_best()
        assert best is not None
        tree.add(best.request_id)
        tree.finish(best.request_id)
        tree.insert(Candidate(number, vectors[number], 64 * chunks, float(number)))
    return (tree.visits - visits) / rounds, (perf_counter() - started) / rounds


def mismatches(rng: random.Random, requests: int) -> int:
    """Answers in which the tree and the slow reference model differ in a seeded run. It must be 0."""
    tree, model = ChunkedHashTree(), ReferenceTree(ChunkedHashTree().order)
    active: list[Any] = []
    wrong = 0
    for number, tokens in enumerate(prompts(requests, 640, rng)):
        cut = tokens[: rng.randrange(len(tokens) + 1)]
        candidate = Candidate(number, chained(cut, CHUNK), len(cut), float(number))
        for one in (tree, model):
            one.insert(candidate)
        best = tree.find_best()
        wrong += best != model.find_best()
        if best is not None and rng.random() < 0.7:
            for one in (tree, model):
                one.add(best.request_id)
            active.append(best.request_id)
        if active and rng.random() < 0.5:
            done = active.pop(rng.randrange(len(active)))
            for one in (tree, model):
                one.finish(done)
        wrong += tree.tip_depth != len(model.tip)
    return wrong


def run(context: Context) -> Report:
    seeds = [context.seed + offset for offset in range(SEEDS)]
    repeats, rounds = (1, 2_000) if context.quick else (3, 10_000)
    sizes = (CHUNK,) if context.quick else CHUNKS
    found: dict[int, list[Timing]] = {size: [] for size in sizes}
    wrong = 0
    with context.progress("cht", SEEDS + 1) as advance:
        for seed in seeds:
            rng = random.Random(seed)
            workload = prompts(REQUESTS, TOKENS, rng)
            for size in sizes:
                count = repeats if size == CHUNK else 1
                found[size].append(_middle([_undisturbed(workload, size, seed) for _ in range(count)]))
            wrong += mismatches(rng, 100 if context.quick else 500)
            advance(1)
        flatness = _flatness(rounds, 5 if context.quick else 21)
        advance(1)
    by_chunk = {size: _middle(timings) for size, timings in found.items()}
    timings, middle = found[CHUNK], by_chunk[CHUNK]
    keys = {
        "total_s": round(middle.total, 4),
        "ops_s": round(middle.operations, 4),
        "visits_flat": round(flatness.many[0] / flatness.few[0], 4),
        "wall_flat": round(flatness.wall.ratio, 3),
        "mismatches": wrong,
    }
    tables = [_operations(middle, timings), _chunks(by_chunk), _siblings(flatness)]
    asked = {
        "all": middle.calls["FINDBEST"],
        "from_cache": middle.from_cache,
        "asked_again": middle.asked_again,
        "padding": middle.padding,
    }
    return Report(
        keys,
        tables,
        plot=lambda figure: _plot(figure, by_chunk, middle),
        data={
            "by_seed": [
                {"seed": seed, "total_s": timing.total, "ops_s": timing.operations}
                for seed, timing in zip(seeds, timings, strict=True)
            ],
            "find_best": asked,
        },
    )


def _middle(timings: Sequence[Timing]) -> Timing:
    """The run with the median total time."""
    return sorted(timings, key=lambda timing: timing.total)[len(timings) // 2]


def _undisturbed(workload: Sequence[array[int]], chunk: int, seed: int) -> Timing:
    """One replay without garbage collection in between, whose cost depends on the other objects of the process."""
    gc.collect()
    gc.disable()
    try:
        return replay(workload, chunk, FIND_BEST, random.Random(seed))
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Flatness:
    """(visits, seconds) of an operation with few and with many siblings, from the median pair. wall: time with many ÷
    with few. noise: time with few ÷ with few, measured the same way."""

    few: tuple[float, float]
    many: tuple[float, float]
    wall: PairedRatio
    noise: PairedRatio


def _flatness(rounds: int, pairs: int) -> Flatness:
    chunks = TOKENS // CHUNK
    runs = [[sibling_cost(siblings, rounds, chunks) for siblings in (FEW, MANY, FEW)] for _ in range(pairs)]
    before, many, after = ([run[place][1] for run in runs] for place in range(3))
    middle = sorted(runs, key=lambda run: run[1][1] / run[0][1])[pairs // 2]
    return Flatness(middle[0], middle[1], paired_ratio(many, before), paired_ratio(after, before))


def _operations(middle: Timing, timings: Sequence[Timing]) -> ResultTable:
    rows: list[list[int | float | str]] = []
    for name in ("HASH", *PAPER_MICROS):
        micros = 1e6 * middle.seconds[name] / max(middle.calls[name], 1)
        paper = PAPER_MICROS.get(name, "in INSERT")
        rows.append([name, middle.calls[name], round(micros, 2), paper, round(middle.seconds[name], 4)])
    spread = f"{min(t.total for t in timings):.3f}–{max(t.total for t in timings):.3f} s"
    return ResultTable(
        f"{REQUESTS} requests × {TOKENS} tokens, chunk {CHUNK}, {GROUPS} groups",
        ("operation", "calls", "µs each", "paper's C++ µs", "seconds"),
        rows,
        f"Median of {len(timings)} seeds ({spread}). {_cached(middle)}",
    )


def _cached(timing: Timing) -> str:
    """How many calls of FINDBEST needed no search, for the readers of its figure."""
    return (
        f"{timing.from_cache} of the {timing.calls['FINDBEST']} FINDBEST were answered from the tree's cache: "
        f"{timing.asked_again} repeated a call at the end of a step, {timing.padding} were made at the end, when "
        "no request waits, to reach the paper's number."
    )


def _chunks(by_chunk: dict[int, Timing]) -> ResultTable:
    rows = [
        [
            size,
            -(-TOKENS // size),
            round(t.seconds["HASH"], 3),
            round(t.seconds["INSERT"], 3),
            round(t.operations, 3),
            round(t.total, 3),
        ]
        for size, t in by_chunk.items()
    ]
    return ResultTable("By chunk size", ("tokens a chunk", "levels", "hashing s", "insert s", "ops s", "total s"), rows)


def _siblings(flatness: Flatness) -> ResultTable:
    costs = ((FEW, flatness.few), (MANY, flatness.many))
    return ResultTable(
        "Siblings waiting below one prefix",
        ("siblings", "nodes visited an operation", "µs an operation"),
        [[size, round(visits, 3), round(seconds * 1e6, 2)] for size, (visits, seconds) in costs],
        f"By time, {MANY:,} ÷ {FEW}: {flatness.wall}. Noise, {FEW} ÷ {FEW}: {flatness.noise}.",
    )


def _plot(figure: Any, by_chunk: dict[int, Timing], middle: Timing) -> None:
    left, right = figure.subplots(1, 2)
    names = list(PAPER_MICROS)
    ours = [1e6 * middle.seconds[name] / max(middle.calls[name], 1) for name in names]
    ours[0] += 1e6 * middle.seconds["HASH"] / middle.calls["HASH"]
    places = range(len(names))
    left.bar(
        [place - 0.2 for place in places], [PAPER_MICROS[name] for name in names], 0.4, label="paper, C++, its machine"
    )
    left.bar([place + 0.2 for place in places], ours, 0.4, label="ours, Python, this machine")
    left.set(xticks=list(places), xticklabels=names, yscale="log", ylabel="µs a call", title="Table 5.1")
    left.legend()
    right.plot(list(by_chunk), [timing.total for timing in by_chunk.values()], "o-", label="total")
    right.plot(list(by_chunk), [timing.operations for timing in by_chunk.values()], "s-", label="without INSERT")
    right.set(xscale="log", yscale="log", xlabel="tokens a chunk", ylabel="seconds", title="Chunk size")
    right.legend()
