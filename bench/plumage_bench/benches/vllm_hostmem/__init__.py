"""`vllm-hostmem`: HotPrefix's host tier in vLLM: bytes, time and hits of offloading, and the effect of promotion.

Few-shot suites (HotPrefix §5.1) run through vLLM's real scheduler, block pool and offloading connector over a fake
device (`vllm.pretend`), and hits, copies and CPU time are counted. The device's pool has room for a quarter of all
prefixes besides a batch's own blocks. Host memory has room for all prefixes, or for half of them. Eight requests run at
a time, in the suite's order. A pair is a suite with a seed, which draws lengths and questions. Both contenders of a
pair serve the same prompts.

The time of offloading (`time_ratio`) has two parts. The first is the time of the copies to host memory on the virtual
GPU's modelled link: a latency for each copy, then bytes at the link's rate. The second is the CPU time of the store
path: the manager's `prepare_store` and `complete_store`, and all counting of uses. `link_ratio` is the first part
alone.

`decode_slowdown` is the time that promotion adds to the engine's steps: its CPU time, since plans are made between two
steps, and the memory bandwidth that its copies use during steps. A step takes 10 ms on the device, and 0.148 ms more
for each prompt token that it computes, as on the virtual GPU. Three suites have answers of one token, so nearly all of
their steps are prefills. The figure is the mean of the worst suite; `decode_slowdown_high` is the largest upper bound
of all.

`lru` is vLLM without host memory, E is vLLM with eviction by hotness. `all` is vLLM's offloading, which stores every
block; `threshold k` is the same with its `store_threshold`. A is selective admission. P is promotion by a single rank:
`A+P hotness` is HotPrefix's, and the others have another rank. `A+lookahead` is Plumage's, not HotPrefix's: it promotes
what the next waiting requests need, then the hottest. `again` changes the seed of its filter and of the ends of copies.
Eight requests always wait, so that a lookahead has some to read. The suites draw subjects evenly: then only the waiting
requests show which subject is next. With `zipf` some subjects are more popular.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumage_bench.benches.vllm_hostmem.report import Counted, Found, Load, closing, plot, ratios_table, table
from plumage_bench.harness import Context, Report
from plumage_bench.ours import Ours
from plumage_bench.vllm.engine import prepare_environment
from plumage_bench.workloads import FEWSHOT_SUITES, Prompt, fewshot_prompts

__all__ = ["CONTENDERS", "KINDS", "Contender", "Kind", "play", "run", "tokens_of"]

BLOCK = 16
_BATCH = 8
_SEEDS = 5
_OTHER_CHANCE = 1_000


@dataclass(frozen=True, slots=True)
class Contender:
    """threshold: vLLM's own offloading with that store_threshold (0 stores all). tier: the plugin's settings. Without
    both there is no host memory. eviction: None for vLLM's LRU. room: share of all prefixes that host memory has room
    for. chance: added to the seed of everything but the load."""

    name: str
    eviction: str | None = None
    threshold: int | None = None
    tier: dict[str, Any] | None = None
    room: float = 1.0
    chance: int = 0


def _tier(frequency: int, promotion: str = "Off", **more: Any) -> dict[str, Any]:
    return {"min_frequency": frequency, "promotion": promotion, **more}


_NO_LOOKAHEAD = {"promotion_lookahead": 0}
OURS = Ours(
    {"engine.hostMemory.capacity": "1Gi", "engine.feather.policy": "Fcfs", "engine.batchLimit": "Static"}, "VLLM"
)
"""The eviction and host tier of a pool, with vLLM's own queue. The load defines the amount of memory."""
_PRODUCT = OURS.plugin()

_ALL = (
    Contender("lru"),
    Contender("E", eviction="Hotness"),
    Contender("all", threshold=0),
    Contender("threshold 2", threshold=2),
    Contender("threshold 2, half", threshold=2, room=0.5),
    Contender("A 2", tier=_tier(2)),
    Contender("A 2, half", tier=_tier(2), room=0.5),
    Contender("A 10", tier=_tier(10)),
    Contender("A+lookahead", tier=_PRODUCT["hostTier"]),
    Contender("A+P hotness", tier=_tier(2, "Hotness", **_NO_LOOKAHEAD)),
    Contender("A+lookahead again", tier=_PRODUCT["hostTier"], chance=_OTHER_CHANCE),
    Contender("A+P recency", tier=_tier(2, "Recency", **_NO_LOOKAHEAD)),
    Contender("A+P frequency", tier=_tier(2, "Frequency", **_NO_LOOKAHEAD)),
    Contender("A+P depth", tier=_tier(2, "Depth", **_NO_LOOKAHEAD)),
    Contender("E+A+lookahead", eviction=_PRODUCT["eviction"]["policy"], tier=_PRODUCT["hostTier"]),
)


CONTENDERS: Mapping[str, Contender] = {one.name: one for one in _ALL}


@dataclass(frozen=True, slots=True)
class Kind:
    """The contenders that run over each suite, and the number of seeds. questions: of a suite of short answers."""

    name: str
    zipf: float
    questions: int
    contenders: Sequence[str]
    seeds: int | None = None


_RANKS = ("A+P hotness", "A+P recency", "A+P frequency", "A+P depth")
KINDS = (
    Kind("copies", 0.0, 4096, ("all", "A 2")),
    Kind("even", 0.0, 1536, ("lru", "A+lookahead", "A+lookahead again", "A+P hotness", "E+A+lookahead")),
    Kind("zipf", 1.0, 1536, ("lru", "A+lookahead", "E+A+lookahead", *_RANKS)),
    Kind("half", 0.0, 1536, ("threshold 2, half", "A 2, half")),
    Kind("even, beside", 0.0, 1536, ("E", "threshold 2", "A 10"), 1),
    Kind("zipf, beside", 1.0, 1536, ("E",), 1),
)
"""The number of blocks that offloading copies grows with the questions; the content of a warm device does not."""


class _Clock:
    """CPU seconds of some functions. A nested call counts once, in the outermost function."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._within = False

    def around(self, owner: Any, name: str) -> None:
        """From now on time the method `name` of `owner`, if it exists."""
        own: Callable[..., Any] | None = getattr(owner, name, None)
        if own is not None:
            setattr(owner, name, lambda *given, **named: self._timed(own, given, named))

    def _timed(self, own: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._within:
            return own(*given, **named)
        self._within, started = True, time.thread_time()
        try:
            return own(*given, **named)
        finally:
            self.seconds += time.thread_time() - started
            self._within = False


def play(model: Path, prompts: Sequence[Prompt], contender: Contender, device: int, host: int, seed: int) -> Counted:
    """One engine serves all prompts. device, host: blocks of each."""
    from plumage_bench.vllm.pretend import PretendEngine, host_tier_arguments

    arguments: dict[str, Any] = {
        "max_num_seqs": _BATCH, "max_num_batched_tokens": 2048, "max_model_len": 8192, "block_size": BLOCK,
    }  # fmt: skip
    chunks = int(contender.room * host)
    if contender.threshold is not None:
        arguments |= host_tier_arguments(chunks, stock=True, store_threshold=contender.threshold)
    elif contender.tier is not None:
        arguments |= host_tier_arguments(chunks)
    seed += contender.chance
    engine = PretendEngine(model, blocks=device + 1, seed=seed, **arguments)
    counters = _install(engine, contender, seed)
    promoting, storing = _clocks(engine)
    late = 0
    for number, prompt in enumerate(prompts):
        if number == len(prompts) * 3 // 4:
            late = engine.stored_blocks
        engine.add(str(number), tokens_of(prompt, number), prompt.output_tokens)
        while len(engine.scheduler.requests) >= 2 * _BATCH:
            engine.step()
    engine.finish(10_000_000)
    found = engine.cached.values()
    return Counted(
        sum(prompt.tokens for prompt in prompts),
        sum(device for device, _ in found),
        sum(host for _, host in found),
        engine.stored_blocks,
        engine.stored_blocks - late,
        engine.store_copies,
        engine.loaded_blocks,
        engine.promoted_blocks,
        counters.get("promotions_used"),
        engine.steps,
        promoting.seconds,
        storing.seconds,
    )


def _clocks(engine: Any) -> tuple[_Clock, _Clock]:
    """The clocks of promotion and of the store path; both stay 0 without host memory."""
    promoting, storing = _Clock(), _Clock()
    connector = getattr(engine.scheduler.connector, "connector_scheduler", None)
    promoting.around(getattr(connector, "promoter", None), "step")
    for name in ("prepare_store", "complete_store", "_count"):
        storing.around(getattr(connector, "manager", None), name)
    return promoting, storing


def _install(engine: Any, contender: Contender, seed: int) -> Any:
    """Eviction and host tier as the plugin's scheduler installs them. Returns their counters. RuntimeError if one is
    refused."""
    from plumage.settings.engine_policies import EvictionConfig, HostTierConfig
    from plumage_engine.vllm.counters import Counters
    from plumage_engine.vllm.eviction import ordered_pool
    from plumage_engine.vllm.guard import Guard
    from plumage_engine.vllm.offload.install import install

    counters = Counters()
    guards = [Guard("eviction", counters), Guard("promotion", counters)]
    if contender.eviction is not None:
        policy, rng = EvictionConfig(policy=contender.eviction), random.Random(seed)
        ordered_pool.install(engine.scheduler, policy, guards[0], counters, rng, lambda: float(engine.steps))
    if contender.tier is not None:
        install(engine.scheduler, HostTierConfig(**contender.tier), guards[1], counters, seed=seed)
    if not all(guard.on for guard in guards):
        raise RuntimeError(f"{contender.name}: {[guard.reason for guard in guards]}")
    return counters


def tokens_of(prompt: Prompt, number: int) -> list[int]:
    """Token ids that are equal where the prompts' blocks have equal names. Tokens after the last whole block are
    unique."""
    tokens = [3 + (name >> shift & 15) for name in prompt.blocks for shift in range(0, 4 * BLOCK, 4)]
    rng = random.Random(number)
    return tokens + [rng.randrange(20, 250) for _ in range(prompt.tokens - len(tokens))]


def run(context: Context) -> Report:
    """All kinds over all suites and seeds."""
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    seeds = 1 if context.quick else context.count("seeds", _SEEDS)
    names = context.some("suites", tuple(FEWSHOT_SUITES), ("mmlu", "bbh") if context.quick else None)
    kinds = _kinds(context)
    total = len(names) * sum(len(kind.contenders) * (kind.seeds or seeds) for kind in kinds)
    found: Found = {}
    with TemporaryDirectory() as folder, context.progress("suites", total) as advance:
        model = write_model(Path(folder) / "tiny")
        for kind in kinds:
            for suite in names:
                rows: dict[str, list[Counted]] = {name: [] for name in kind.contenders}
                found[Load(suite, kind.name)] = rows
                for seed in range(context.seed, context.seed + (kind.seeds or seeds)):
                    for name, counted in _played(model, suite, kind, seed, 4 if context.quick else 1):
                        rows[name].append(counted)
                        advance(1)
    tables = [ratios_table(found), *(table(load, rows) for load, rows in found.items())]
    return Report(closing(found), tables, lambda figure: plot(figure, found), _plain(found))


def _kinds(context: Context) -> list[Kind]:
    """The kinds that were requested. `copies` has that many questions."""
    quick = [kind.name for kind in KINDS if not kind.seeds] if context.quick else None
    some = context.some("kinds", [kind.name for kind in KINDS], quick)
    copies = next(kind for kind in KINDS if kind.name == "copies")
    asked = replace(copies, questions=context.count("copies", copies.questions, 100_000))
    return [asked if kind is copies else kind for kind in KINDS if kind.name in some]


def _played(model: Path, suite: str, kind: Kind, seed: int, fewer: int) -> Iterator[tuple[str, Counted]]:
    """The results of each contender of a kind over the same prompts of a suite. fewer: divisor of the number of
    questions."""
    shape = FEWSHOT_SUITES[suite]
    # Each token of an answer takes a step, so a suite of long answers gets fewer questions.
    fewer *= 4 if shape.output_tokens > 1 else 1
    shape = replace(shape, zipf=kind.zipf, questions=kind.questions // fewer)
    prefixes = int(shape.subjects * shape.example_tokens / BLOCK)
    own = int(_BATCH * (shape.question_tokens * 2 + shape.output_tokens * 2) / BLOCK)
    prompts = fewshot_prompts(shape, seed)
    for name in kind.contenders:
        yield name, play(model, prompts, CONTENDERS[name], prefixes // 4 + own, prefixes, seed)


def _plain(found: Found) -> dict[str, dict[str, list[dict[str, float]]]]:
    return {
        load.label: {name: [asdict(one) for one in counted] for name, counted in rows.items()}
        for load, rows in found.items()
    }
