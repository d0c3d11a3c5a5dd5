"""`fidelity`: compares the simulator with real vLLM, with the same trace, seed and cost model.

vLLM's engine core runs in this process over the virtual GPU, in virtual time. The simulator runs as usual. Each request
has the same tokens, arrival time and answer, token for token. The difference is the scheduler, block pool and queue:
vLLM's with the plugin, or the simulator's. The keys are those of the worst cell: hit ratio in points, the larger error
of TTFT's P50 and P95, and throughput, in output tokens a second from the first arrival to the last token. Each covers
the requests of all seeds, because RLT is randomized. Asynchronous scheduling, which the simulator does not have, is
shown but not counted.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumage.errors import StateError
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile
from plumage_bench.virtual_time.virtual_fleet import Hooks, VirtualFleet
from plumage_bench.vllm.timed import Ask, Outcome, TimedEngine
from plumage_engine.simulator.engine.device import PRESETS
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_engine.simulator.events.block_hashes import block_hashes, root

if TYPE_CHECKING:
    from plumage_bench.virtual_gpu.speech import Speech

__all__ = ["CELLS", "TRACES", "Cell", "Measured", "Trace", "measure", "run", "simulated"]

BLOCK = 16
_IDS = range(250)  # token ids of the tiny model's vocabulary, without its ends


@dataclass(frozen=True, slots=True)
class Cell:
    """A queue and an eviction policy. counted: whether the keys include it."""

    label: str
    queue: str = "Fcfs"
    eviction: str = "Lru"
    asynchronous: bool = False

    def plumage(self, seed: int) -> dict[str, Any]:
        """The plugin's settings. Without a feature vLLM runs without the plugin; other settings are left to vLLM."""
        settings = Ours(self.overrides, "VLLM").plugin()
        return {**settings, "seed": seed} if settings["feather"] or settings["eviction"] else {}

    @property
    def overrides(self) -> dict[str, Any]:
        """Overrides of the manifest for both: the simulator's engine and the plugin."""
        return {
            "engine.feather.policy": self.queue,
            "engine.eviction.policy": self.eviction,
            "engine.batchLimit": "Static",
        }


CELLS = (
    Cell("FCFS, LRU (stock)"),
    Cell("FEATHER (bandit), LRU", queue="Bandit"),
    Cell("tree order, LRU", queue="ChtOrder"),
    Cell("FCFS, RLT", eviction="Rlt"),
    Cell("FCFS, hotness", eviction="Hotness"),
    Cell("FEATHER (bandit), hotness", queue="Bandit", eviction="Hotness"),
    Cell("tree order, hotness (the product)", queue="ChtOrder", eviction="Hotness"),
    Cell("stock, asynchronous (not counted)", asynchronous=True),
)


@dataclass(frozen=True, slots=True)
class Trace:
    """blocks: KV blocks for requests. asks: the requests, by seed and by the answers of a virtual GPU."""

    name: str
    asks: Callable[[random.Random, Speech], list[Ask]]
    blocks: int
    device: str = "gpu"
    seqs: int = 64
    budget: int = 8192


def _groups(
    rng: random.Random, *, count: int, groups: int, shared: int, rate: float, answer: int, skew: float = 0.0
) -> list[Ask]:
    """Prompts of groups with popularity 1 / rank^skew. Tails and answers have 0.5 to 1.5 times their mean length."""
    prefixes = [rng.choices(_IDS, k=shared) for _ in range(groups)]
    chosen = rng.choices(range(groups), [1 / (rank + 1) ** skew for rank in range(groups)], k=count)
    times = accumulate(rng.expovariate(rate) for _ in range(count))
    return [
        Ask(f"{n}", prefixes[group] + rng.choices(_IDS, k=rng.randrange(100, 300)), _around(rng, answer), at)
        for n, (group, at) in enumerate(zip(chosen, times, strict=True))
    ]


def _around(rng: random.Random, mean: int) -> int:
    return rng.randrange(mean // 2, mean + mean // 2)


def _conversations(rng: random.Random, speech: Speech) -> list[Ask]:
    """60 clients with 2 to 6 rounds. A prompt has all earlier messages, also the engine's answers."""
    asks = []
    for client in range(60):
        said: list[int] = rng.choices(_IDS, k=200)
        at = rng.uniform(0, 120)
        for turn in range(rng.randrange(2, 7)):
            said = said + rng.choices(_IDS, k=_around(rng, 400))
            tokens = _around(rng, 150)
            asks.append(Ask(f"{client}-{turn}", said, tokens, at))
            said = said + speech.text(speech.answer(said), len(said), tokens)
            at += rng.uniform(15, 40)
    return asks


TRACES = (
    Trace(
        "shared prefixes, near saturation",
        lambda rng, speech: _groups(rng, count=500, groups=24, shared=2000, rate=3.0, answer=100, skew=0.7),
        blocks=2600,
    ),
    Trace("conversations", _conversations, blocks=3000),
    Trace(
        "chunked, overloaded, preempting",
        lambda rng, speech: _groups(rng, count=300, groups=16, shared=1500, rate=10.0, answer=200),
        blocks=2000,
        budget=1024,
    ),
    Trace(
        "cpu, shared prefixes",
        lambda rng, speech: _groups(rng, count=300, groups=12, shared=1000, rate=3.0, answer=60, skew=0.7),
        blocks=800,
        device="cpu",
        seqs=16,
        budget=2048,
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """hit: share of prompt tokens. first50, first95: TTFT in seconds. rate: output tokens a second."""

    hit: float
    first50: float
    first95: float
    rate: float

    def errors(self, truth: Measured) -> tuple[float, float, float]:
        """The error of the hit ratio in points, the larger relative error of the TTFTs, and that of the throughput."""
        first = max(abs(self.first50 / truth.first50 - 1), abs(self.first95 / truth.first95 - 1))
        return 100 * abs(self.hit - truth.hit), first, abs(self.rate / truth.rate - 1)


Served = tuple[Sequence[Ask], Mapping[str, Outcome]]


def measure(runs: Sequence[Served]) -> Measured:
    """What clients and the cache measure, over the requests of all runs."""
    firsts = [outcomes[ask.name].first - ask.at for asks, outcomes in runs for ask in asks]
    tokens = sum(len(ask.tokens) for asks, _ in runs for ask in asks)
    hits = sum(outcome.cached for _, outcomes in runs for outcome in outcomes.values())
    took = sum(max(one.end for one in outcomes.values()) - min(ask.at for ask in asks) for asks, outcomes in runs)
    answered = sum(ask.answer for asks, _ in runs for ask in asks)
    return Measured(hits / tokens, quantile(firsts, 0.5), quantile(firsts, 0.95), answered / took)


class _Notes(Hooks):
    """The outcomes of one simulated engine."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def route(self, request: SimRequest, now: float) -> int:
        return 0

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        self.outcomes[str(request.request_id)] = Outcome(first=now, end=now)

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        outcome = self.outcomes[str(request.request_id)]
        outcome.end, outcome.cached = now, cached_tokens


def simulated(trace: Trace, cell: Cell, asks: Sequence[Ask], speech: Speech, seed: int) -> dict[str, Outcome]:
    """Serve the trace with the simulator, in virtual time."""
    settings = Ours(
        cell.overrides
        | {
            "engine.simulator.blockSize": BLOCK,
            "engine.simulator.cacheBlocks": trace.blocks,
            "engine.simulator.maxNumSeqs": trace.seqs,
            "engine.simulator.maxBatchedTokens": trace.budget,
        }
    ).engine(PRESETS[trace.device])
    notes = _Notes()
    fleet = VirtualFleet({0: SimEngine(settings, rng=random.Random(seed))}, notes)
    for ask in asks:
        fleet.arrive(_request(ask, speech))
    fleet.run()
    return notes.outcomes


def _request(ask: Ask, speech: Speech) -> SimRequest:
    """The request with the names of the blocks that its answer will fill. Its last token never has KV."""
    answer = speech.text(speech.answer(ask.tokens), len(ask.tokens), ask.answer)
    start = root("fidelity")
    prompt = block_hashes(ask.tokens, BLOCK, start)
    whole = block_hashes([*ask.tokens, *answer[:-1]], BLOCK, start)
    return SimRequest(ask.name, len(ask.tokens), prompt, ask.answer, ask.at, output_hashes=whole[len(prompt) :])


def _both(model: Path, trace: Trace, cell: Cell, seed: int) -> tuple[Served, Served]:
    """(vLLM, simulator). StateError if a feature of the plugin disabled itself."""
    device = {
        "preset": trace.device,
        "numBlocks": trace.blocks + 1,  # one block is vLLM's null block
        "vocabulary": "All",
        "asyncScheduling": cell.asynchronous,
    }
    engine = TimedEngine(
        model,
        {**cell.plumage(seed), "virtualGpu": device},
        max_model_len=min(16_384, BLOCK * (trace.blocks - 1)),
        block_size=BLOCK,
        max_num_seqs=trace.seqs,
        max_num_batched_tokens=trace.budget,
    )
    try:
        speech = engine.device.speech
        asks = trace.asks(random.Random(f"fidelity {trace.name} {seed}"), speech)
        real = engine.serve(asks)
        if engine.failed:
            raise StateError(f"{cell.label}: {'; '.join(engine.failed)}")
        return (asks, real), (asks, simulated(trace, cell, asks, speech, seed))
    finally:
        engine.close()


@dataclass(slots=True)
class _Found:
    """The results of one trace and cell, a run for each seed."""

    real: list[Served] = field(default_factory=list)
    simulated: list[Served] = field(default_factory=list)

    def measured(self) -> tuple[Measured, Measured]:
        """(vLLM, simulator)."""
        return measure(self.real), measure(self.simulated)

    def errors(self) -> tuple[float, float, float]:
        real, guessed = self.measured()
        return guessed.errors(real)


def run(context: Context) -> Report:
    from plumage_engine.vllm.tiny_model import write_model

    traces = TRACES[1:2] if context.quick else TRACES
    seeds = [context.seed + offset for offset in range(1 if context.quick else 3)]
    found = {(trace, cell): _Found() for trace in traces for cell in CELLS}
    total = len(found) * len(seeds)
    with tempfile.TemporaryDirectory() as folder, context.progress("fidelity", total) as advance:
        model = write_model(Path(folder) / "tiny")
        for (trace, cell), figures in found.items():
            for seed in seeds:
                real, guessed = _both(model, trace, cell, seed)
                figures.real.append(real)
                figures.simulated.append(guessed)
                advance(1)
    counted = [figures.errors() for (_, cell), figures in found.items() if not cell.asynchronous]
    keys = {
        name: max(error[place] for error in counted)
        for place, name in enumerate(("hit_points", "ttft_error", "throughput_error"))
    }
    tables = [_table(trace, {cell: found[trace, cell] for cell in CELLS}) for trace in traces]
    return Report(keys, tables, lambda figure: _plot(figure, found), {"errors": counted, "seeds": seeds})


def _plot(figure: Any, found: Mapping[tuple[Trace, Cell], _Found]) -> None:
    """Each counted run as a point: vLLM on the x axis, the simulator on the y axis. They agree on the diagonal."""
    left, right = figure.subplots(1, 2)
    for trace in dict.fromkeys(trace for trace, _ in found):
        pairs = [figures.measured() for (of, cell), figures in found.items() if of is trace and not cell.asynchronous]
        left.scatter([real.hit for real, _ in pairs], [guessed.hit for _, guessed in pairs], label=trace.name)
        for name, marker in (("first50", "o"), ("first95", "^")):
            times = [(getattr(real, name), getattr(guessed, name)) for real, guessed in pairs]
            right.scatter(
                *zip(*times, strict=True), marker=marker, label=f"{trace.name}, P{name.removeprefix('first')}"
            )
    for axis, title in ((left, "hit ratio"), (right, "time to first token, s")):
        axis.axline((0.5, 0.5), slope=1, color="grey", linewidth=0.5)
        axis.set(xlabel="vLLM on the virtual GPU", ylabel="simulator", title=title)
        axis.legend(fontsize=6)
    right.set(xscale="log", yscale="log")


def _table(trace: Trace, found: Mapping[Cell, _Found]) -> ResultTable:
    rows: list[list[int | float | str]] = []
    for cell, figures in found.items():
        real, guessed = map(_figures, figures.measured())
        pairs = [f"{a:.4g} / {b:.4g}" for a, b in zip(real, guessed, strict=True)]
        rows.append([cell.label, *pairs, *(round(error, 4) for error in figures.errors())])
    return ResultTable(
        f"{trace.name}: vLLM / simulator",
        ("policies", "hit ratio", "TTFT P50", "TTFT P95", "tokens/s", "points", "TTFT error", "throughput error"),
        rows,
        f"Device {trace.device}, {trace.blocks} blocks of {BLOCK}, batch {trace.seqs}, {trace.budget} tokens a step; "
        "all seeds together.",
    )


def _figures(measured: Measured) -> tuple[float, float, float, float]:
    return measured.hit, measured.first50, measured.first95, measured.rate
