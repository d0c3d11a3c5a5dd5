"""What routers and agents report to the operator of a pool: the JSON of `GET /v1/plumage/fleet` (router) and of
`GET /v1/plumage/stats` (agent). Autoscaler, status and `doctor` read these and nothing else, never Redis.

Contract: counters and histograms grow from 0 since `started`; a reader takes two reports and subtracts. Another
`started` is another process, whose counters began at zero. Times are seconds, `at` and `started` since 1970; tokens are
tokens. Version skew: unknown fields are ignored, absent ones have their default. A `version` above `VERSION` is
`NewerReportError`, since a known field may have another meaning there.

| what an autoscaler asks | where |
|---|---|
| hit ratio | agents' `hitTokens` ÷ `queryTokens`; as clients got it: routers' `cachedTokens` ÷ `promptTokens` |
| output tokens a second of a replica | agents' `outputTokens` of two reports ÷ the time between |
| total tokens a second of a replica | the same of `queryTokens` + `outputTokens` |
| time to first token | routers' `ttft` (streams, from request read to first body byte, wait for a replica included) |
| queue wait | `queueWait`: agents (from an engine's arrival to its batch), routers (until a replica has room) |
| KV cache | agents' `kvUsage`, `cacheTokens` |
| overload or policy | agents' `waitingForCapacity` against `waitingHeldBack` |
| would more cache help | routers' `curve` at replicas × `cacheTokens` |
| wake a pool at zero | routers' `wanting` |
| the coldest replica | agents' `hotness`, the least |
| may a replica be deleted | not while an agent's `warmup.state` is Waiting or Warming |
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from plumage.errors import ConfigurationError
from plumage.mrc import MissRatioCurve

__all__ = [
    "FLEET_PATH",
    "STATS_PATH",
    "VERSION",
    "AdapterReport",
    "AgentReport",
    "CurvePoints",
    "HistogramReport",
    "NewerReportError",
    "ReplicaReport",
    "RouterReport",
    "WarmupReport",
    "curve_points",
    "read_agent_report",
    "read_router_report",
    "source_digest",
]

VERSION: Final = 1
FLEET_PATH: Final = "/v1/plumage/fleet"
STATS_PATH: Final = "/v1/plumage/stats"
MOST_POINTS: Final = 64  # of a curve: 1.6 % of it apart, which is about the precision of a sample of 4,096 keys


class NewerReportError(ConfigurationError):
    """A report of a later version than this reader's: upgrade the reader."""


class _Report(msgspec.Struct, frozen=True, rename="camel"):
    pass


class HistogramReport(_Report, frozen=True):
    """bounds: upper ends of the buckets. counts: values up to each bound, cumulative, and last all of them."""

    bounds: list[float] = []
    counts: list[int] = []
    total: float = 0.0

    @property
    def count(self) -> int:
        return self.counts[-1] if self.counts else 0

    def since(self, earlier: HistogramReport) -> HistogramReport:
        """What came after `earlier`; all of it where the process restarted or its buckets differ."""
        if self.bounds != earlier.bounds or len(self.counts) != len(earlier.counts) or earlier.count > self.count:
            return self
        fresh = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        return HistogramReport(self.bounds, fresh, self.total - earlier.total)

    def quantile(self, share: float) -> float | None:
        """The value that `share` (0 to 1) of all are at or below, straight between the bounds; the highest bound where
        it lies above. None of no values."""
        if not self.count:
            return None
        rank = share * self.count
        at = bisect_left(self.counts, rank)
        if at >= len(self.bounds):
            return self.bounds[-1] if self.bounds else None
        low = self.bounds[at - 1] if at else min(0.0, self.bounds[0])
        below = self.counts[at - 1] if at else 0
        inside = self.counts[at] - below
        return low + (self.bounds[at] - low) * ((rank - below) / inside if inside else 1.0)


class CurvePoints(_Report, frozen=True):
    """A miss-ratio curve of the pool's prompts, at most MOST_POINTS points. tokens: sizes of one cache for the whole
    pool, ascending. hits: hit ratio of each. accesses: what it rests on, older ones faded. A router sees its own
    requests: with several routers the curve with the most `accesses` is the best known."""

    tokens: list[float] = []
    hits: list[float] = []
    accesses: float = 0.0

    def as_curve(self) -> MissRatioCurve:
        """Returns the curve, with tokens for blocks."""
        return MissRatioCurve([int(size) for size in self.tokens], self.hits, self.accesses)


class ReplicaReport(_Report, frozen=True):
    """A replica as one router sees it. state: Ready | Warming | Draining | Cordoned | Stalled | Unhealthy; why: why it
    is not chosen. in_flight: of this router. The rest are counters of answers that ended well."""

    id: str
    state: str = ""
    why: str | None = None
    in_flight: int = 0
    routed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class RouterReport(_Report, frozen=True):
    """One router.

    listed: it has read the membership once. membership_error: the reason why its membership may be old.
    waiting: requests that wait now because no replica can take them; `held` in JSON, as in older versions.
    wanting: requests that found no replica in the last minute: above 0 a pool at zero must wake.
    queued: requests that wait until a replica has room. queue_wait: how long requests waited for that.
    config_error: what of a changed configuration file was not applied.
    replicas: all members, chosen or not.
    """

    pool: str
    router: str
    version: int = VERSION
    at: float = 0.0
    started: float = 0.0
    serving: bool = True
    listed: bool = True
    membership_error: str | None = None
    config_error: str | None = None
    directory: str = ""
    in_flight: int = 0
    requests: int = 0
    waiting: int = msgspec.field(default=0, name="held")
    wanting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: HistogramReport = HistogramReport()
    latency: HistogramReport = HistogramReport()
    queued: int = 0
    queue_wait: HistogramReport = HistogramReport()
    curve: CurvePoints = CurvePoints()
    replicas: list[ReplicaReport] = []


class WarmupReport(_Report, frozen=True):
    """state: Waiting (for the engine) | Warming | Warmed. reason: how warming ended, for people."""

    state: str = "Waiting"
    prefixes: int = 0
    tokens: int = 0
    reason: str = ""


class AdapterReport(_Report, frozen=True):
    """One LoRA adapter of the pool's manifest, at one replica. state: Loaded | Loading | Failed. message: the cause
    where it is not loaded. source: `source_digest` of the folder or repository that the state is about."""

    name: str
    state: str = "Loaded"
    message: str = ""
    source: str = ""


class AgentReport(_Report, frozen=True):
    """One agent and the engine beside it. state: Ready | Warming | Draining | Stalled | Unhealthy; why: why it is not
    Ready. started: when the engine's process began, 0 if unknown. kv_usage: 0 to 1. cache_tokens: what its
    KV cache holds, 0 unknown. waiting_held_back: requests that FEATHER holds back on purpose; waiting_for_capacity:
    those that found no room. query_tokens, hit_tokens, output_tokens: the engine's counters. hotness: uses, pool-wide,
    of the prefixes it holds; the coldest victim has the least. adapters: of the manifest; None while unknown."""

    replica: str
    version: int = VERSION
    at: float = 0.0
    started: float = 0.0
    state: str = ""
    why: str | None = None
    directory: str = ""
    running: int = 0
    waiting: int = 0
    waiting_held_back: int = 0
    waiting_for_capacity: int = 0
    kv_usage: float = 0.0
    cache_tokens: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    output_tokens: int = 0
    hotness: float = 0.0
    queue_wait: HistogramReport = HistogramReport()
    ttft: HistogramReport = HistogramReport()
    warmup: WarmupReport = WarmupReport()
    adapters: list[AdapterReport] | None = None


_R = TypeVar("_R", RouterReport, AgentReport)


def read_router_report(data: bytes) -> RouterReport:
    """ConfigurationError where it is none, NewerReportError where it is of a later version."""
    return _read(data, RouterReport)


def read_agent_report(data: bytes) -> AgentReport:
    """ConfigurationError where it is none, NewerReportError where it is of a later version."""
    return _read(data, AgentReport)


def source_digest(source: str) -> str:
    """Returns a short digest of an adapter's folder or repository, so that a report stays small."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _read(data: bytes, kind: type[_R]) -> _R:
    try:
        report = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"it is no {kind.__name__}: {error}") from error
    if report.version > VERSION:
        raise NewerReportError(f"it is of version {report.version}, this reader knows {VERSION}: upgrade the operator")
    return report


def curve_points(curve: MissRatioCurve, tokens_per_block: float) -> CurvePoints:
    """A curve over blocks as one over tokens, thinned to where it moves."""
    kept = _thinned(curve.hits)
    return CurvePoints(
        [round(curve.sizes[at] * tokens_per_block, 1) for at in kept],
        [round(curve.hits[at], 5) for at in kept],
        curve.accesses,
    )


def _thinned(hits: Sequence[float]) -> list[int]:
    """Indices of at most MOST_POINTS points, evenly apart in what the curve gains, with both ends."""
    if len(hits) <= MOST_POINTS:
        return list(range(len(hits)))
    rise = (hits[-1] - hits[0]) / (MOST_POINTS - 2) or 1.0
    kept, last = [0], 0
    for at in range(1, len(hits) - 1):
        step = int((hits[at] - hits[0]) / rise)
        if step > last and len(kept) < MOST_POINTS - 1:
            kept.append(at)
            last = step
    return [*kept, len(hits) - 1]
