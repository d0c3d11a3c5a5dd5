"""Feeds the product's `plumage.kv_metrics` with a run in virtual time, and sums up a window of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from statistics import fmean

from plumage.hotness.cuckoo import mix64
from plumage.kv_metrics import EvictionLatency, PrefillCost, PrefillWork, Saturation, SeenBlocks, UsageSums
from plumage_bench.benches.kvmetrics.sessions import BLOCK
from plumage_bench.quantiles import quantile
from plumage_bench.virtual_time.fleet import Served, Worker
from plumage_engine.simulator.engine.request import StepReport

__all__ = ["COST", "Observed", "Window"]

COST = PrefillCost.of_model(layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, intermediate=14_336)
"""Llama 3 8B, the model of the simulator's `gpu` preset."""
_SEEN = 1 << 21
"""Places for the blocks that all workers have computed: at least four times those of a run."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A window of a run. Ratios are shares. rate: output tokens a second. p99_evicting: seconds from arrival to the
    last token, of requests that ran while blocks were evicted; NaN if there are none. evicting: their share. between:
    P95 over requests of the seconds between two tokens. preempted: preemptions ÷ ended requests. usage, running: means
    over the time of steps. ended: requests."""

    chr: float
    rcr: float
    muv: float
    rate: float
    p99_evicting: float
    p99: float
    evicting: float
    between: float
    preempted: float
    usage: float
    running: float
    ended: int


class _Engine:
    """What is measured of one worker."""

    def __init__(self, seen: SeenBlocks, saturation: Saturation) -> None:
        self.work = PrefillWork(COST, seen, BLOCK)
        self.saturation = saturation
        self.latency = EvictionLatency()
        self.context = 0
        self.usage = UsageSums()
        self.running = 0.0  # requests × seconds
        self.tokens = self.preempted = 0
        self.before = (0.0, 0.0)  # FLOPs before the window


class Window:
    """An observer of a fleet. Counts steps and ended requests from `begin` seconds on; what was computed before counts
    as computed."""

    def __init__(self, workers: int, begin: float, saturation: Saturation | None = None) -> None:
        seen = SeenBlocks(_SEEN)
        self.saturation = Saturation() if saturation is None else saturation
        self._begin = begin
        self._engines = [_Engine(seen, self.saturation) for _ in range(workers)]
        self._open: dict[int, Served] = {}
        self._reached: dict[int, int] = {}
        self._resumed: set[int] = set()
        self._served: list[tuple[Served, bool]] = []
        self._last = begin

    def routed(self, number: int, served: Served) -> None:
        self._open[number] = served

    def stepped(self, worker: Worker, report: StepReport, now: float) -> None:
        one, evictions = self._engines[worker.state.slot], worker.engine.pool.evictions
        for number in report.preempted:
            self._preempted(one, int(str(number)))
        for name in report.admitted:
            number = int(str(name))
            one.latency.admitted(str(number), evictions)
            one.context += self._open[number].arrival.prompt.tokens
        for name, start, tokens in report.chunks:
            self._prefilled(one, int(str(name)), start, tokens)
        counted = now - report.seconds >= self._begin
        if not counted:
            one.before = one.work.total, one.work.repeated
        ended = [int(str(name)) for name, _ in report.finished]
        running = worker.engine.load().running + len(ended)
        tokens = report.decode_tokens + len(report.first_tokens)
        one.saturation.step(report.seconds, running, one.context, tokens, len(report.preempted))
        if counted:
            self._last = now
            one.usage.add(report.seconds, report.kv_usage)
            one.running += running * report.seconds
            one.tokens += tokens
            one.preempted += len(report.preempted)
        for number in ended:
            self._ended(one, number, evictions, counted=counted)

    def _prefilled(self, one: _Engine, number: int, start: int, tokens: int) -> None:
        end = start + tokens
        if number in self._resumed:  # its answer's blocks were computed before it was preempted
            one.work.decoded(self._names(number, slice(self._reached[number] // BLOCK, end // BLOCK)))
        one.work.prefilled(start, end, self._names(number, one.work.touched(start, end)))
        self._reached[number] = end

    def _preempted(self, one: _Engine, number: int) -> None:
        prompt = self._open[number].arrival.prompt
        one.context -= prompt.tokens
        if self._reached.get(number, 0) >= prompt.tokens:
            self._resumed.add(number)

    def _ended(self, one: _Engine, number: int, evictions: int, *, counted: bool) -> None:
        served = self._open[number]
        prompt = served.arrival.prompt
        one.context -= prompt.tokens
        full = (prompt.tokens + prompt.output_tokens - 1) // BLOCK
        one.work.decoded(self._names(number, slice(self._reached.pop(number) // BLOCK, full)))
        under = one.latency.ended(str(number), evictions, served.latency)
        self._resumed.discard(number)
        del self._open[number]
        if counted:
            self._served.append((served, under))

    def _names(self, number: int, which: slice) -> list[int]:
        """Blocks of a request, as well mixed as hashes."""
        prompt = self._open[number].arrival.prompt
        return [mix64(block) for block in (*prompt.blocks, *prompt.output_blocks)[which]]

    def observed(self) -> Observed:
        """The figures of the window. Of several workers MUV is the mean."""
        served = [one for one, _ in self._served]
        under = [one.latency for one, evicting in self._served if evicting]
        spans = [
            (one.finished - one.first_token) / (one.arrival.prompt.output_tokens - 1)
            for one in served
            if one.arrival.prompt.output_tokens > 1
        ]
        busy = [one for one in self._engines if one.usage.seconds]
        total = sum(one.work.total - one.before[0] for one in busy)
        repeated = sum(one.work.repeated - one.before[1] for one in busy)
        seconds = sum(one.usage.seconds for one in busy)
        return Observed(
            chr=sum(one.cached_tokens for one in served) / sum(one.arrival.prompt.tokens for one in served),
            rcr=repeated / total,
            muv=fmean(one.usage.deviation for one in busy),
            rate=sum(one.tokens for one in busy) / (self._last - self._begin),
            p99_evicting=quantile(under, 0.99) if under else nan,
            p99=quantile([one.latency for one in served], 0.99),
            evicting=len(under) / len(served),
            between=quantile(spans, 0.95),
            preempted=sum(one.preempted for one in busy) / len(served),
            usage=sum(one.usage.usage for one in busy) / seconds,
            running=sum(one.running for one in busy) / seconds,
            ended=len(served),
        )
