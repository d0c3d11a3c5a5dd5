"""`vllm-hostmem`: HotPrefix's host tier in vLLM: bytes and hits of offloading, and what promotion adds to the device's.

Few-shot suites (HotPrefix §5.1) through vLLM's real scheduler, block pool and offloading connector over a pretended
device (`vllm_pretend`): hits and bytes are counted, time is not. The device's pool holds a quarter of all prefixes
beside what a batch needs of its own; host memory holds all prefixes, or half of them. Eight requests at a time, in the
suite's order.

`decode_slowdown` is the CPU time that promotion adds to a step of the engine, of a step that takes 10 ms on its device:
plans are made between two steps, copies run beside the next ones and are not charged. The mean of the worst suite's
seeds, and its worst seed (`decode_slowdown_high`).

`lru` is vLLM without host memory; E its eviction by hotness. `all` is vLLM's offloading, which stores every block;
`threshold k` the same with its `store_threshold`. A is selective admission, P promotion: of what waiting requests lack,
then of what is hot. `A+P hotness` and its neighbours promote by the one rank alone, so that ranks compare. The suites
draw subjects evenly, where no policy can know which is next; with `zipf` some are asked for more often than others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.vllm_engine import prepare_environment
from plumage_bench.workloads import FEWSHOT_SUITES, Prompt, fewshot_prompts

__all__ = ["CONTENDERS", "Contender", "Counted", "play", "run", "tokens_of"]

BLOCK = 16
_BATCH = 8
_SEEDS = (1, 2, 3)
_QUESTIONS = 4096
_STEP_US = 10_000.0


@dataclass(frozen=True, slots=True)
class Contender:
    """threshold: vLLM's own offloading with that store_threshold (0 stores all). tier: our settings. Neither: no host
    memory. eviction: None for vLLM's LRU. room: share of all prefixes that host memory holds."""

    name: str
    eviction: str | None = None
    threshold: int | None = None
    tier: dict[str, Any] | None = None
    room: float = 1.0


def _tier(frequency: int, promotion: str = "Off", **more: Any) -> dict[str, Any]:
    return {"min_frequency": frequency, "promotion": promotion, **more}


_NO_LOOKAHEAD = {"promotion_lookahead": 0}

CONTENDERS = (
    Contender("lru"),
    Contender("E", eviction="Hotness"),
    Contender("all", threshold=0),
    Contender("threshold 2", threshold=2),
    Contender("threshold 10", threshold=10),
    Contender("threshold 2, half", threshold=2, room=0.5),
    Contender("A 2", tier=_tier(2)),
    Contender("A 2, half", tier=_tier(2), room=0.5),
    Contender("A 10", tier=_tier(10)),
    Contender("A+P", tier=_tier(2, "Hotness")),
    Contender("A+P hotness", tier=_tier(2, "Hotness", **_NO_LOOKAHEAD)),
    Contender("A+P recency", tier=_tier(2, "Recency", **_NO_LOOKAHEAD)),
    Contender("A+P frequency", tier=_tier(2, "Frequency", **_NO_LOOKAHEAD)),
    Contender("A+P depth", tier=_tier(2, "Depth", **_NO_LOOKAHEAD)),
    Contender("E+A+P", eviction="Hotness", tier=_tier(2, "Hotness")),
)


@dataclass(slots=True)
class Counted:
    """Tokens of prompts: all, found in the device, found in host memory. Blocks copied down, up for requests, and up
    ahead of them; promoted ones that were used. step_us: CPU of promotion a step."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    stored: int = 0
    loaded: int = 0
    promoted: int = 0
    used: int = 0
    step_us: float = 0.0

    @property
    def device_ratio(self) -> float:
        return self.device / self.prompt

    @property
    def ratio(self) -> float:
        return (self.device + self.host) / self.prompt


@dataclass(slots=True)
class _Clock:
    """CPU seconds spent in a function, and calls."""

    seconds: float = 0.0
    calls: int = 0
    own: Any = field(default=None)

    def around(self, *given: Any) -> Any:
        started = time.process_time()
        try:
            return self.own(*given)
        finally:
            self.seconds += time.process_time() - started
            self.calls += 1


def play(model: Path, prompts: Sequence[Prompt], contender: Contender, device: int, host: int, seed: int) -> Counted:
    """One engine serves all of them. device, host: blocks of either."""
    from plumage_bench.vllm_pretend import PretendEngine, host_tier_arguments

    arguments: dict[str, Any] = {
        "max_num_seqs": _BATCH, "max_num_batched_tokens": 2048, "max_model_len": 8192, "block_size": BLOCK,
    }  # fmt: skip
    chunks = int(contender.room * host)
    if contender.threshold is not None:
        arguments |= host_tier_arguments(chunks, stock=True, store_threshold=contender.threshold)
    elif contender.tier is not None:
        arguments |= host_tier_arguments(chunks)
    engine = PretendEngine(model, blocks=device + 1, seed=seed, **arguments)
    counters, clock = _install(engine, contender, seed)
    for number, prompt in enumerate(prompts):
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
        engine.loaded_blocks,
        engine.promoted_blocks,
        counters.get("promotions_used"),
        1e6 * clock.seconds / max(1, engine.steps),
    )


def _install(engine: Any, contender: Contender, seed: int) -> tuple[Any, _Clock]:
    """Eviction and host tier as the plugin's scheduler installs them; RuntimeError when one is refused."""
    from plumage_engine.policies import HostTierConfig
    from plumage_engine.vllm import blocks
    from plumage_engine.vllm.counters import Counters
    from plumage_engine.vllm.guard import Guard
    from plumage_engine.vllm.offload.install import install
    from plumage_engine.vllm.settings import PluginEviction

    counters, clock = Counters(), _Clock()
    guards = [Guard("eviction", counters), Guard("promotion", counters)]
    if contender.eviction is not None:
        policy, rng = PluginEviction(policy=contender.eviction), random.Random(seed)
        blocks.install(engine.scheduler, policy, guards[0], counters, rng, lambda: float(engine.steps))
    if contender.tier is not None:
        install(engine.scheduler, HostTierConfig(**contender.tier), guards[1], counters, seed=seed)
        promoter = getattr(engine.scheduler.connector.connector_scheduler, "promoter", None)
        if promoter is not None:
            clock.own, promoter.step = promoter.step, clock.around
    if not all(guard.on for guard in guards):
        raise RuntimeError(f"{contender.name}: {[guard.reason for guard in guards]}")
    return counters, clock


def tokens_of(prompt: Prompt, number: int) -> list[int]:
    """Token ids that are equal where the prompt's blocks have equal names; what fills no block is its own."""
    tokens = [3 + (name >> shift & 15) for name in prompt.blocks for shift in range(0, 4 * BLOCK, 4)]
    rng = random.Random(number)
    return tokens + [rng.randrange(20, 250) for _ in range(prompt.tokens - len(tokens))]


def run(context: Context) -> Report:
    """All contenders over all suites and seeds."""
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    seeds = _SEEDS[:1] if context.quick else _SEEDS
    names = ("mmlu", "bbh") if context.quick else tuple(FEWSHOT_SUITES)
    suites = [(suite, zipf) for suite in names for zipf in (0.0, 1.0)]
    found: dict[tuple[str, float], dict[str, list[Counted]]] = {}
    with (
        TemporaryDirectory() as folder,
        context.progress("suites", len(suites) * len(seeds) * len(CONTENDERS)) as advance,
    ):
        model = write_model(Path(folder) / "tiny")
        for suite, zipf in suites:
            # A suite of long answers takes a step a token: fewer questions do.
            fewer = (4 if context.quick else 1) * (4 if FEWSHOT_SUITES[suite].output_tokens > 1 else 1)
            shape = replace(FEWSHOT_SUITES[suite], zipf=zipf, questions=_QUESTIONS // fewer)
            prefixes = int(shape.subjects * shape.example_tokens / BLOCK)
            own = int(_BATCH * (shape.question_tokens * 2 + shape.output_tokens * 2) / BLOCK)
            rows = found[suite, zipf] = {one.name: [] for one in CONTENDERS}
            for seed in seeds:
                prompts = fewshot_prompts(shape, context.seed + seed)
                for contender in CONTENDERS:
                    rows[contender.name].append(play(model, prompts, contender, prefixes // 4 + own, prefixes, seed))
                    advance(1)
    return _report(found)


def _report(found: dict[tuple[str, float], dict[str, list[Counted]]]) -> Report:
    tables = [_table(f"{suite}, zipf {zipf:g}", rows) for (suite, zipf), rows in found.items()]
    even = [rows for (_, zipf), rows in found.items() if not zipf]
    skewed = [rows for (_, zipf), rows in found.items() if zipf]
    ranks = ("A+P recency", "A+P frequency", "A+P depth")
    keys: dict[str, int | float | str] = {
        "bytes_ratio": min(_ratio(rows, "all", "A 2", "stored") for rows in even),
        "hit_loss": max(1 - _ratio(rows, "A 2", "all", "ratio") for rows in even),
        "over_threshold": min(_ratio(rows, "A 2, half", "threshold 2, half", "ratio") for rows in even + skewed),
        "threshold_bytes": min(_ratio(rows, "threshold 2, half", "A 2, half", "stored") for rows in even + skewed),
        "ap_gain": min(_ratio(rows, "A+P", "lru", "device_ratio") for rows in even),
        "eap_gain": min(_ratio(rows, "E+A+P", "lru", "device_ratio") for rows in even),
        "ap_gain_zipf": min(_ratio(rows, "A+P", "lru", "device_ratio") for rows in skewed),
        "eap_gain_zipf": min(_ratio(rows, "E+A+P", "lru", "device_ratio") for rows in skewed),
        "over_ranks": min(_ratio(rows, "A+P hotness", rank, "device_ratio") for rows in skewed for rank in ranks),
        "step_us": max(one.step_us for rows in even + skewed for one in rows["A+P"]),
        "decode_slowdown": max(fmean(one.step_us for one in rows["A+P"]) for rows in even + skewed) / _STEP_US,
        "decode_slowdown_high": max(one.step_us for rows in even + skewed for one in rows["A+P"]) / _STEP_US,
    }
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in keys.items()}
    return Report(rounded, tables, data={f"{suite} {zipf:g}": _plain(rows) for (suite, zipf), rows in found.items()})


def _ratio(rows: dict[str, list[Counted]], above: str, below: str, what: str) -> float:
    """Mean over the seeds of one contender's figure ÷ another's."""
    pairs = zip(rows[above], rows[below], strict=True)
    return fmean(getattr(one, what) / max(1e-9, getattr(other, what)) for one, other in pairs)


def _table(title: str, rows: dict[str, list[Counted]]) -> ResultTable:
    columns = ("contender", "device hits", "÷ lru", "all hits", "stored", "loaded", "promoted", "used", "µs a step")
    shown: list[tuple[str | float | int, ...]] = [
        (
            name,
            *(
                round(fmean(one.device_ratio for one in counted), 4),
                round(_ratio(rows, name, "lru", "device_ratio"), 3),
            ),
            round(fmean(one.ratio for one in counted), 4),
            *(round(fmean(getattr(one, what) for one in counted)) for what in ("stored", "loaded", "promoted", "used")),
            round(fmean(one.step_us for one in counted), 1),
        )
        for name, counted in rows.items()
    ]
    return ResultTable(title, columns, shown, "Hits: share of prompt tokens. Stored, loaded, promoted, used: blocks.")


def _plain(rows: dict[str, list[Counted]]) -> dict[str, list[dict[str, float]]]:
    fields = tuple(Counted.__dataclass_fields__)
    return {name: [{what: getattr(one, what) for what in fields} for one in counted] for name, counted in rows.items()}
