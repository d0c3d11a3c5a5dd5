"""One setting of a fleet with one workload, and the figures of a run.

Devices:
- `stated`: the simulator's `gpu` preset (KVRouting's machine, an L40 with an 8B model).
- `quadratic`: attention takes half of the time of an 8,192-token prompt. The device is faster by as much, so that such
  a prompt takes as long as on the stated one. (Otherwise no rate would keep P95 under 2 s when a twentieth of the
  prompts are long and cold.)
- `mixed`: workers of four speeds.
- `windowed`: attention costs as much as on the quadratic one, but half of the layers attend to at most 2,048 tokens,
  and rows are computed in waves of 512.
- `measured`: a table of step times of real vLLM on a CPU.

The last two are scaled like the quadratic one. Lbgr's formula of a prefill, c·m·(1 + κ·(h + m/2)), is exact for the
stated and the quadratic device and not for the last two (decision 0202).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, sqrt
from pathlib import Path

from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile
from plumage_bench.routing.contenders import Contender
from plumage_bench.virtual_time.fleet import FleetRun, run_fleet
from plumage_bench.virtual_time.measured_device import MeasuredDevice, WindowedDevice
from plumage_bench.workloads import (
    AdaptersShape,
    ArticleShape,
    ClosedLoop,
    FewshotShape,
    GspShape,
    HotspotShape,
    LongdocShape,
    MultiturnShape,
    OpenLoop,
    Source,
    adapter_prompts,
    agent_sessions,
    article_prompts,
    conversations,
    fewshot_prompts,
    gsp_prompts,
    hotspot_arrivals,
    longdoc_prompts,
)
from plumage_engine.simulator.engine.device import GPU, QUADRATIC_ATTENTION, Device, StepShape, make_device
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["DEVICES", "Figures", "Scenario", "Shape", "measure", "pooled", "serve"]

Shape = GspShape | LongdocShape | FewshotShape | MultiturnShape | ArticleShape | HotspotShape | AdaptersShape

DEVICES = ("stated", "quadratic", "mixed", "windowed", "measured")
"""windowed and measured: their prefill does not follow the formula that Lbgr learns (decision 0202)."""
_LONG = 8192
_LONG_PAIRS = _LONG * _LONG / 2
_QUADRATIC_SCALE = (_LONG * GPU.row + _LONG_PAIRS * GPU.pair) / (2 * _LONG * GPU.row)
_MIXED_SPEEDS = (0.7, 0.9, 1.1, 1.5)  # time scales; the mean speed is 0.99 of the stated device's


@dataclass(frozen=True)
class Scenario:
    """rate: requests a second for the whole fleet. cache_tokens: of each worker, 200k as in KVRouting. max_num_seqs:
    None for the manifest's default. in_one_piece: share of the requests that do not stream."""

    shape: Shape
    rate: float
    workers: int = 4
    device: str = "stated"
    cache_tokens: int = 200_000
    max_num_seqs: int | None = None
    in_one_piece: float = 0.0

    def source(self, seed: int) -> Source:
        shape = self.shape
        if isinstance(shape, MultiturnShape):
            return ClosedLoop(conversations(shape, seed), self.rate, seed, shape.at_once)
        if isinstance(shape, ArticleShape):
            if shape.kind == "agents":
                return ClosedLoop(agent_sessions(shape, seed), self.rate, seed)
            return OpenLoop(article_prompts(shape, seed), self.rate, seed)
        if isinstance(shape, HotspotShape):
            return hotspot_arrivals(shape, seed)
        if isinstance(shape, AdaptersShape):
            return OpenLoop(adapter_prompts(shape, seed), self.rate, seed)
        if isinstance(shape, GspShape):
            return OpenLoop(gsp_prompts(shape, seed), self.rate, seed)
        if isinstance(shape, LongdocShape):
            return OpenLoop(longdoc_prompts(shape, seed), self.rate, seed)
        return OpenLoop(fewshot_prompts(shape, seed), self.rate, seed)

    def engines(self, eviction: str) -> list[EngineSettings]:
        ours = self.ours(eviction)
        return [ours.engine(_device(self.device, slot)) for slot in range(self.workers)]

    def ours(self, eviction: str) -> Ours:
        """An engine of the fleet: the default manifest's but for its eviction, for all contenders."""
        size = self.shape.block_size
        limit = {} if self.max_num_seqs is None else {"engine.simulator.maxNumSeqs": self.max_num_seqs}
        return Ours(
            {
                "engine.simulator.blockSize": size,
                "engine.simulator.cacheBlocks": self.cache_tokens // size,
                "engine.eviction.policy": eviction,
                **limit,
            }
        )

    def at(self, rate: float) -> Scenario:
        return replace(self, rate=rate)


_COLD = _LONG  # tokens of the prompt that takes as long on the measured and the windowed device as on the stated one
_WAVE, _WINDOW, _WINDOWED_ATTENTION = 512, 2048, QUADRATIC_ATTENTION
_MEASURED = Path(__file__).parents[1] / "measured" / "vllm_cpu.json"


@cache
def _measured() -> Device:
    return MeasuredDevice.of(json.loads(_MEASURED.read_text(encoding="utf-8"))["data"], GPU, _COLD)


@cache
def _windowed() -> Device:
    pair = GPU.pair * _WINDOWED_ATTENTION
    device = WindowedDevice(**{**vars(GPU), "pair": pair}, wave=_WAVE, window=_WINDOW)
    cold = StepShape(prefill_tokens=_COLD, prefill_pairs=_COLD * _COLD / 2)
    return replace(device, time_scale=GPU.seconds(cold) / device.seconds(cold))


def _device(name: str, slot: int) -> Device:
    if name == "measured":
        return _measured()
    if name == "windowed":
        return _windowed()
    if name == "quadratic":
        return make_device("gpu", attention=QUADRATIC_ATTENTION, time_scale=_QUADRATIC_SCALE)
    return make_device("gpu", time_scale=_MIXED_SPEEDS[slot % len(_MIXED_SPEEDS)] if name == "mixed" else 1.0)


@dataclass(frozen=True)
class Figures:
    """The figures of one run, or of several pooled. Times are seconds. balance: coefficient of variation of the
    workers' busy time. muv: mean over workers of the standard deviation over time of their KV usage."""

    ttft: Sequence[float]
    latency: Sequence[float]
    hit_ratio: float
    throughput: float
    balance: float
    muv: float

    def ttft_at(self, share: float) -> float:
        return quantile(self.ttft, share)

    def latency_at(self, share: float) -> float:
        return quantile(self.latency, share)


def serve(contender: Contender, scenario: Scenario, seed: int, *, late_after: float = inf) -> FleetRun:
    seed += contender.seeds_from
    policy = contender.make(seed, scenario.shape.block_size)
    return run_fleet(
        scenario.engines(contender.eviction),
        policy,
        scenario.source(seed),
        seed=seed,
        late_after=late_after,
        in_one_piece=scenario.in_one_piece,
    )


def measure(contender: Contender, scenario: Scenario, seed: int) -> Figures:
    """Serve the whole workload once."""
    run = serve(contender, scenario, seed)
    prompt_tokens = sum(served.arrival.prompt.tokens for served in run.served)
    busy = [worker.busy for worker in run.workers]
    return Figures(
        array("d", (served.ttft for served in run.served)),
        array("d", (served.latency for served in run.served)),
        sum(served.cached_tokens for served in run.served) / prompt_tokens,
        len(run.served) / run.seconds,
        _variation(busy),
        sum(worker.muv for worker in run.workers) / len(run.workers),
    )


def pooled(runs: Sequence[Figures]) -> Figures:
    """All requests of all seeds together; ratios are averaged."""
    count = len(runs)
    return Figures(
        [value for run in runs for value in run.ttft],
        [value for run in runs for value in run.latency],
        sum(run.hit_ratio for run in runs) / count,
        sum(run.throughput for run in runs) / count,
        sum(run.balance for run in runs) / count,
        sum(run.muv for run in runs) / count,
    )


def _variation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / len(values)) / mean if mean else 0.0
