"""`vllm-parity`: the plugin may change when vLLM computes an answer and where its KV blocks are, but never the answer.

The same random requests, in groups of shared prefixes, go through real vLLM in this process. The first run, without the
plugin, is the reference. Then come other settings without the plugin, which show the effect of chance in bf16, and then
the plugin. Answers are greedy, in bf16, compared token for token; aborted requests are compared up to their last token.
The model's answers depend on every block of the prompt (tests/vllm/parity), so a single wrong block would be visible.

A different answer is examined. The two tokens at the first difference must be vLLM's own two likeliest there, and
equally likely in bf16 (`ties`). All other errors are in `failed`: a feature of the plugin that disabled itself, a
request without an answer, a block that is not free at the end.

Asynchronous scheduling is included on a CPU too: vLLM's CPU platform disables it as not required there, and
`vllm.engine.running` reverts that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumage_bench.baselines.batching import path
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.vllm.engine import Answer, Engine, Prompt, plugin_arguments, prepare_environment, running
from plumage_bench.vllm.pretend import host_tier_arguments

__all__ = [
    "REQUESTS",
    "REQUESTS_QUICK",
    "Difference",
    "Outcome",
    "Variant",
    "compare",
    "missed",
    "prompts",
    "run",
    "serve",
    "ties",
    "variants",
]

REQUESTS, REQUESTS_QUICK = 2_000, 200
BLOCK = 32
OURS = Ours(runtime="VLLM")
"""What the default manifest deploys."""
_ALONE: Mapping[str, Any] = {"feather": None, "eviction": None, "batchLimit": "Static"}
_STOPPING: Mapping[str, Mapping[str, Any]] = {
    "Bandit": {},
    "BanditPaper": {},
    "QLearning": {},
    "QLearningPaper": {},
    # These prompts share too few levels for the policy's defaults.
    "Heuristic": {"chunkTokens": BLOCK, "options": {"max_loss": 0, "relaxed_loss": 1}},
    # It takes the oldest candidate with the smallest loss, here always 0, so its rules would never decide to STOP.
    "Radix": {"chunkTokens": BLOCK, "options": {"stop": "Bandit"}},
    "Oracle": {},
    "Dynamic": {"options": {"largest": 6}},
}
"""Policies that can STOP, each with settings with which it does so here."""
_ORDERING = ("ChtOrder", "Fcfs", "Lpm", "DfsWeight", "Predictive", "Marginal")
"""Policies that never STOP; the last two do so in longer runs."""
_EVICTIONS = ("Lru", "Rlt", "Hotness")
_COUNTED = ("stops", "evictions", "host_admissions", "promotions", "promotions_used", "disk_reads")
"""Counters of the plugin in the table, which show that a setting had its effect."""
# Log probabilities come from bf16 logits, whose neighbouring values differ by 1/16 in this model's range (8 to 16).
_TIE = 0.125


@dataclass(frozen=True, slots=True)
class Variant:
    """plugin: its settings as in JSON; None: vLLM without it. arguments: of EngineArgs. aborts: a tenth of the clients
    disconnects. quick: whether `--quick` has it too. host: pages of host memory, of which a block of this model takes
    four; 0 for none. disk: bytes of disk below it. about: counters of the plugin that must not be 0 at the end, since
    otherwise the setting was not tested."""

    name: str
    plugin: Mapping[str, Any] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    aborts: bool = False
    quick: bool = True
    host: int = 0
    disk: int = 0
    about: Sequence[str] = ()


_EVICTED = ("evictions",)
# A promoted block that no request reads would not test its content.
_TIER = ("host_admissions", "promotions", "promotions_used")
_ROOM = "num_gpu_blocks_override"
_DISK = ("disk_writes", "disk_reads")
_LESS_ROOM, _SOME_ROOM = {_ROOM: 56}, {_ROOM: 96}
_SITUATIONS = (
    Variant("batches of 5", arguments={"max_num_seqs": 5}),
    Variant("prefill in chunks of 96", arguments={"max_num_batched_tokens": 96}),
    Variant("preemptions: 56 blocks", arguments=_LESS_ROOM),
    Variant("aborts, 56 blocks", arguments=_LESS_ROOM, aborts=True),
    Variant("asynchronous, 56 blocks", arguments={**_LESS_ROOM, "async_scheduling": True}),
)


def variants(quick: bool) -> list[Variant]:
    """First vLLM alone, in other situations than the reference's. Then the plugin in all situations, and each policy by
    itself."""
    alone = [replace(one, name=f"vLLM, {one.name}") for one in _SITUATIONS]
    plugin = [
        replace(
            one, name=f"plugin, {one.name}", plugin=OURS.plugin(), about=_EVICTED if one.arguments.get(_ROOM) else ()
        )
        for one in (Variant("as vLLM's"), *_SITUATIONS)
    ]
    return [one for one in chain(alone, plugin, _parts(), _host_tier(), _policies()) if one.quick or not quick]


def _parts() -> list[Variant]:
    """Parts of the plugin enabled or disabled."""
    static = Ours({"engine.batchLimit": "Static"}, "VLLM")
    return [
        Variant(
            "batch sorted, STOP",
            Ours({"engine.feather.policy": "Bandit", "engine.feather.orderBatch": True}, "VLLM").plugin(),
            _LESS_ROOM,
            quick=False,
            about=_EVICTED,
        ),
        Variant(
            "batch limit static",
            static.plugin(),
            _LESS_ROOM,
            quick=False,
            about=_EVICTED,
        ),
    ]


def _host_tier() -> list[Variant]:
    """Every block is stored at its first use, so that many are loaded and promoted. Host memory is smaller than all of
    them."""
    often: dict[str, Any] = {"hostTier": {"minFrequency": 1}}
    takes_all = {"hostTier": {"admission": "All", "promotion": "Off"}}
    on_disk: dict[str, Any] = {"hostTier": {"minFrequency": 1, "promotion": "Off"}}
    both, below = (*_EVICTED, *_TIER), (*_EVICTED, "host_admissions", *_DISK)
    late = {"async_scheduling": True}
    return [
        # With 56 blocks few are free for promotions, and few promoted ones are read before their eviction. With enough
        # requests some are read, beside preemptions.
        Variant("plugin, host tier", often, _SOME_ROOM, host=600, about=both),
        Variant("plugin, host tier, 56 blocks", often, _LESS_ROOM, quick=False, host=600, about=both),
        Variant("plugin, host tier, aborts", often, _SOME_ROOM, aborts=True, quick=False, host=600, about=both),
        Variant("plugin, host tier, asynchronous", often, {**_SOME_ROOM, **late}, quick=False, host=600, about=both),
        Variant("plugin, host tier, disk", on_disk, _LESS_ROOM, quick=False, host=60, disk=64 << 20, about=below),
        Variant(
            "plugin, host tier, disk, aborts, asynchronous",
            on_disk,
            {**_LESS_ROOM, **late},
            aborts=True,
            quick=False,
            host=60,
            disk=64 << 20,
            about=below,
        ),
        Variant("host tier alone", {**_ALONE, **often}, _SOME_ROOM, host=600, about=_TIER),
        Variant(
            "host tier, all of it, no promotion",
            {**_ALONE, **takes_all},
            _LESS_ROOM,
            quick=False,
            host=600,
            about=("host_admissions",),
        ),
    ]


def _policies() -> list[Variant]:
    queues = [
        Variant(
            f"feather {name}",
            {**_ALONE, "feather": {"policy": path(name), **_STOPPING.get(name, {})}},
            _LESS_ROOM,
            quick=False,
            about=("stops",) if name in _STOPPING else (),
        )
        for name in (*_STOPPING, *_ORDERING)
    ]
    evictions = [
        Variant(f"eviction {name}", {**_ALONE, "eviction": {"policy": name}}, _LESS_ROOM, quick=False, about=_EVICTED)
        for name in _EVICTIONS
    ]
    return queues + evictions


def prompts(rng: random.Random, count: int, groups: int = 24) -> list[Prompt]:
    """Two levels of shared prefixes; one prompt in eight shares nothing; 3 to 480 tokens; answers of 4 to 32 tokens; a
    few arrive a step, in bursts. One in ten has a step at which its client would disconnect. Prompts that share nothing
    have no group. groups: 24 share about 90 blocks, more than the smaller devices here have, so that hot blocks are
    evicted and cached again."""
    stems = [_tokens(rng, rng.randrange(64, 257)) for _ in range(groups // 3)]
    shared = [rng.choice(stems) + _tokens(rng, rng.randrange(0, 129)) for _ in range(groups)]
    made, step = [], 0
    for number in range(count):
        group = rng.randrange(groups) if rng.random() < 7 / 8 else None
        tokens = (() if group is None else shared[group]) + _tokens(rng, rng.randrange(3, 96))
        abort = rng.randrange(12) if rng.random() < 0.1 else None
        made.append(Prompt(f"r{number}", tokens, rng.randrange(4, 33), step, abort, group))
        step += rng.choice((0, 0, 0, 1, 1, 2)) if number % 20 else 8
    return made


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(256), k=count))


@dataclass(frozen=True, slots=True)
class Difference:
    """One request: its prompt and the tokens with which both answers begin, then the next token of each."""

    tokens: tuple[int, ...]
    expected: int
    got: int


@dataclass(slots=True)
class Outcome:
    """failed: errors other than different answers, in words."""

    variant: Variant
    differences: list[Difference] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    preemptions: int = 0
    aborted: int = 0
    steps: int = 0
    cached: float = 0.0
    """Share of the prompts' tokens."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Counters of the plugin, summed over all labels."""


def compare(prompt: Prompt, expected: Sequence[int], got: Sequence[int]) -> Difference | None:
    """None if one answer begins with the other."""
    for place, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return Difference((*prompt.tokens, *expected[:place]), one, other)
    return None


def serve(model: Path, variant: Variant, wanted: Sequence[Prompt]) -> tuple[dict[str, Answer], Outcome]:
    """The answers by the prompts' names, in a new engine. `compare` finds the `differences`."""
    plugin = {} if variant.plugin is None else plugin_arguments(variant.plugin)
    given = list(wanted) if variant.aborts else [replace(one, abort=None) for one in wanted]
    arguments = {"max_model_len": 544, "block_size": BLOCK, **variant.arguments}
    with TemporaryDirectory() as folder, running(model, **plugin, **_tiers(variant, folder), **arguments) as engine:
        done = engine.serve(given)
        outcome = Outcome(variant, preemptions=done.preemptions, steps=done.steps)
        outcome.failed += _off(engine)
        outcome.counted = _counted(engine)
        outcome.failed += missed(variant, outcome.counted)
        if engine.pool.get_num_free_blocks() != engine.pool.num_gpu_blocks - 1:  # vLLM keeps a null block in use
            outcome.failed.append("blocks are still taken")
    outcome.aborted = sum(not answer.finished for answer in done.answers.values())
    outcome.cached = sum(answer.cached for answer in done.answers.values()) / sum(len(one.tokens) for one in given)
    for one in given:
        answer = done.answers[one.name]
        if one.abort is None and len(answer.tokens) != one.answer:
            outcome.failed.append(f"{one.name} got {len(answer.tokens)} of {one.answer} tokens")
    return done.answers, outcome


def _tiers(variant: Variant, folder: str) -> dict[str, Any]:
    """EngineArgs of host memory, and of the disk below it."""
    below: dict[str, Any] = {"disk_path": folder, "disk_bytes_to_use": variant.disk} if variant.disk else {}
    return host_tier_arguments(variant.host, **below) if variant.host else {}


def missed(variant: Variant, counted: Mapping[str, int]) -> list[str]:
    """Counters that the setting needs and that stayed 0."""
    return [f"no {what.replace('_', ' ')}" for what in variant.about if not counted.get(what)]


def _off(engine: Engine) -> list[str]:
    """Features that should be on and are off: their parity was not tested."""
    plumage = getattr(engine.scheduler, "plumage", None)
    guards = {} if plumage is None else plumage.guards
    return [f"{name} is off: {guard.reason}" for name, guard in guards.items() if not guard.on]


def _counted(engine: Engine) -> Mapping[str, int]:
    plumage, counts = getattr(engine.scheduler, "plumage", None), Counter[str]()
    for name, _, count in () if plumage is None else plumage.counters.rows():
        counts[name] += count
    return counts


def run(context: Context) -> Report:
    """Serve all prompts under each variant. keys: `mismatches` with the plugin, `stock_mismatches` without."""
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    wanted = prompts(random.Random(context.seed), REQUESTS_QUICK if context.quick else REQUESTS)
    chosen = variants(context.quick)
    outcomes = []
    with TemporaryDirectory() as folder, context.progress("vllm-parity", len(chosen) + 1) as advance:
        model = write_model(Path(folder) / "tiny")
        expected, reference = serve(model, Variant("vLLM, the reference"), wanted)
        advance(1)
        for variant in chosen:
            got, outcome = serve(model, variant, wanted)
            found = (compare(one, expected[one.name].tokens, got[one.name].tokens) for one in wanted)
            outcome.differences = [difference for difference in found if difference is not None]
            outcomes.append(outcome)
            advance(1)
        shown = ties(model, [one for outcome in outcomes for one in outcome.differences])
    return _report(len(wanted), reference, outcomes, shown)


def ties(model: Path, differences: Sequence[Difference]) -> list[bool]:
    """For each difference: whether its two tokens are vLLM's likeliest two there, and equally likely in bf16."""
    if not differences:
        return []
    asked = [Prompt(f"tie {place}", one.tokens, 1) for place, one in enumerate(differences)]
    with running(model, max_model_len=544, block_size=BLOCK, max_num_seqs=1) as engine:
        answers = engine.serve(asked, top=2).answers
    tops = (answers[one.name].top[0] for one in asked)
    return [
        {one.expected, one.got} <= set(top) and abs(top[one.expected] - top[one.got]) <= _TIE
        for one, top in zip(differences, tops, strict=True)
    ]


def _report(requests: int, reference: Outcome, outcomes: Sequence[Outcome], ties: Sequence[bool]) -> Report:
    left = iter(ties)
    rows: list[list[int | float | str]] = []
    for outcome in (reference, *outcomes):
        shown = sum(next(left) for _ in outcome.differences)
        figures = (outcome.preemptions, outcome.aborted, outcome.steps, round(outcome.cached, 3))
        counts = (outcome.counted.get(name, 0) for name in _COUNTED)
        rows.append([outcome.variant.name, len(outcome.differences), shown, len(outcome.failed), *figures, *counts])
    stock = [outcome for outcome in outcomes if outcome.variant.plugin is None]
    plugin = [outcome for outcome in outcomes if outcome.variant.plugin is not None]
    keys = {
        "mismatches": sum(len(outcome.differences) for outcome in plugin),
        "stock_mismatches": sum(len(outcome.differences) for outcome in stock),
        "ties": sum(ties),
        "failed": sum(len(outcome.failed) for outcome in (reference, *outcomes)),
    }
    columns = ("settings", "differ", "of them ties", "failed", "preempted", "aborted", "steps", "cached", *_COUNTED)
    wrong = [f"{outcome.variant.name}: {text}" for outcome in (reference, *outcomes) for text in outcome.failed[:3]]
    notes = "; ".join(wrong) or "No feature switched itself off, each request has its answer, each block is free."
    return Report(keys, [ResultTable(f"{requests} requests under each setting", columns, rows, notes)])
