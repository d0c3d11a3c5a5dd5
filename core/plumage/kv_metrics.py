"""The article's metrics of a cache under load (section 3.1): repeated prefill, usage over time, throughput, latency.

An engine's hooks and benchmarks in virtual time report to these classes what happened. The cache hit ratio (CHR) needs
no class: engines count prompt tokens and cached ones. docs/explanation/kv-metrics.md has the formulas.

| metric                               | class             |
|--------------------------------------|-------------------|
| RCR, repeated prefill                | `PrefillWork`     |
| MUV, deviation of the usage          | `UsageSums`       |
| TaS and OBS, throughput by batch     | `Saturation`      |
| latency while blocks are evicted     | `EvictionLatency` |
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt

from plumage.errors import ConfigurationError
from plumage.prometheus.histogram import Histogram

__all__ = [
    "BATCHES",
    "CONTEXTS",
    "SECONDS",
    "WAYS",
    "Cell",
    "EvictionLatency",
    "PrefillCost",
    "PrefillWork",
    "Saturation",
    "SeenBlocks",
    "UsageSums",
    "class_of",
    "rung_of",
]

CONTEXTS = ("2k", "8k", "32k", "more")
"""Names of the classes: tokens up to 2,048, 8,192, 32,768, and above."""
_MOST_TOKENS = (2048, 8192, 32_768)
BATCHES = tuple(1 << power for power in range(11))
"""The ladder: powers of two up to 1,024. A larger batch counts as the last."""
_REMEMBERED = 3600.0  # seconds of a cell; then half of it is forgotten
WAYS = 8  # fingerprints in a bucket of `SeenBlocks`
_FINGERPRINT = (1 << 32) - 1
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 240.0, 480.0)
"""Upper ends of the buckets of `EvictionLatency`."""


def class_of(tokens: float) -> str:
    """The class of a context of so many tokens."""
    return CONTEXTS[bisect_left(_MOST_TOKENS, tokens)]


def rung_of(batch: float) -> int:
    """The nearest rung, by ratio."""
    return BATCHES[min(max(0, round(log2(batch))), len(BATCHES) - 1)] if batch > 0 else BATCHES[0]


@dataclass(slots=True)
class Cell:
    """tokens, seconds: of all its windows since the start; tokens of sustained ones only."""

    tokens: float = 0.0
    seconds: float = 0.0
    recent_tokens: float = 0.0
    recent_seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds
        self.recent_tokens += tokens
        self.recent_seconds += seconds
        if self.recent_seconds > _REMEMBERED:
            self.recent_tokens /= 2
            self.recent_seconds /= 2

    @property
    def rate(self) -> float:
        """Sustained tokens a second, lately."""
        return self.recent_tokens / self.recent_seconds if self.recent_seconds else 0.0


class Saturation:
    """TaS and OBS by context length, as a running engine sees them.

    TaS is the most tokens a second that a batch sustains before memory is exhausted or an objective is missed; OBS is
    that batch. An engine can't try static batches. But a decoding batch of `b` requests is as fast whether a limit or
    the load made it so, and loads make many batches. So time is cut into windows. A window belongs to a class of
    contexts and to a rung of the ladder of batches, by its means. Its output tokens count unless a request was
    preempted in it, or steps took longer than the objective for the time between two tokens. Such a window sustains
    nothing.

        rate of a cell = output tokens of its sustained windows ÷ seconds of all its windows
        TaS of a class = the highest rate of its cells with enough seconds;   OBS = the rung of that cell

    A batch that the load never made is not compared. A cell with more than an hour of windows forgets half of them.

    window: seconds of steps that make a window. enough: seconds of a cell below which it can't be the best.
    slowest: the objective, mean seconds from token to token; inf for none."""

    def __init__(self, *, window: float = 10.0, enough: float = 60.0, slowest: float = inf) -> None:
        self._window, self._enough, self._slowest = window, enough, slowest
        self._cells: dict[tuple[str, int], Cell] = {}
        self._clear()

    def _clear(self) -> None:
        self._seconds = self._running = self._context = 0.0
        self._tokens = self._steps = 0
        self._kept = True

    def step(self, seconds: float, running: int, context: int, tokens: int, preempted: int) -> None:
        """Counts a step that took `seconds`. running: requests in it. context: sum of their prompts' tokens. tokens:
        generated."""
        self._seconds += seconds
        self._running += running * seconds
        self._context += context * seconds
        self._tokens += tokens
        self._steps += 1
        if preempted:
            self._kept = False
        if self._seconds >= self._window:
            self._close()

    def _close(self) -> None:
        if self._running:
            place = class_of(self._context / self._running), rung_of(self._running / self._seconds)
            sustained = self._kept and self._seconds / self._steps <= self._slowest
            self._cells.setdefault(place, Cell()).add(self._tokens if sustained else 0, self._seconds)
        self._clear()

    def cells(self) -> Iterator[tuple[str, int, Cell]]:
        """(class, rung, cell) of every cell with a window, sorted."""
        for (context, batch), cell in sorted(self._cells.items()):
            yield context, batch, cell

    def best(self, context: str) -> tuple[int, float] | None:
        """OBS and TaS of a class. None if no cell has enough seconds and sustained anything. Of equal rates the
        smaller batch is best."""
        found = [
            (cell.rate, -batch)
            for (of, batch), cell in self._cells.items()
            if of == context and cell.recent_seconds >= self._enough and cell.rate > 0
        ]
        if not found:
            return None
        rate, batch = max(found)
        return -batch, rate


class SeenBlocks:
    """A bounded memory of the blocks that an engine has computed.

    A table of buckets with eight fingerprints of 32 bits, 4 bytes a block. A full bucket drops the one that was
    computed longest ago.

    - A block that was never computed counts as seen with a probability of at most 8 / 2^32.
    - A block is forgotten when eight others have come into its bucket since it was last computed. Of `n` places and
      after `m` other blocks, the probability is P(Poisson(8·m/n) ≥ 8). That is 0.1 % at m = n/4, 5 % at n/2 and 55 % at
      n.

    The cuckoo filter of `plumage.hotness` also counts uses. When it is full, each new block moves up to 64 others, and
    a scheduler's step has no time for that (decision 0295).

    capacity: blocks, rounded up to eight times a power of two. ConfigurationError below one.

    A block's name has 64 well mixed bits, like a chained hash. The low bits choose the bucket, the high ones are the
    fingerprint.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigurationError(f"a memory of blocks needs a capacity of at least one block, got {capacity}")
        buckets = 1 << max(0, -(-capacity // WAYS) - 1).bit_length()
        self._mask = buckets - 1
        self._table = array("I", bytes(4 * WAYS * buckets))

    @property
    def places(self) -> int:
        """The number of blocks that fit."""
        return len(self._table)

    @property
    def bytes(self) -> int:
        """Memory of the table."""
        return self._table.itemsize * len(self._table)

    def __contains__(self, name: int) -> bool:
        base = (name & self._mask) * WAYS
        return (name >> 32 & _FINGERPRINT or 1) in self._table[base : base + WAYS]

    def add(self, name: int) -> bool:
        """Remember the block as the newest of its bucket. True if it was there."""
        fingerprint, base = name >> 32 & _FINGERPRINT or 1, (name & self._mask) * WAYS
        ways = self._table[base : base + WAYS]
        known = fingerprint in ways
        if known:
            ways.remove(fingerprint)
        else:
            ways.pop()
        ways.insert(0, fingerprint)
        self._table[base : base + WAYS] = ways
        return known


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Floating-point operations of prefill.

        FLOPs of tokens a … b−1 = (b − a) · row + pair · Σ (p + 1), p = a … b−1

    row: two for each weight of the layers that a token passes. pair: a query with one key and its value in all layers.
    Not counted are embeddings, norms, and the output layer, which needs one token of a prompt. Layers that attend to a
    window count as if they attended to all.
    """

    row: float
    pair: float

    @classmethod
    def of_model(
        cls, *, layers: int, hidden: int, heads: int, kv_heads: int, head_size: int, intermediate: int, experts: int = 1
    ) -> PrefillCost:
        """Returns the cost of a decoder with gated MLPs. heads: of queries. intermediate: width of one MLP. experts:
        MLPs that a token passes in each layer."""
        attention = hidden * head_size * 2 * (heads + kv_heads)  # queries, output, keys, values
        mlp = 3 * hidden * intermediate * experts
        return cls(2.0 * layers * (attention + mlp), 4.0 * layers * heads * head_size)

    def flops(self, start: int, end: int) -> float:
        """Returns the operations for the tokens at positions start … end − 1."""
        tokens = end - start
        return tokens * (self.row + self.pair * (start + end + 1) / 2)


class PrefillWork:
    """RCR = repeated ÷ all prefill FLOPs.

    A token's work repeats if the KV of its block was computed before. The cache has lost the block, or another request
    computes it at the same time. Blocks have chained names, so equal names mean equal tokens from the beginning.

    total, repeated: FLOPs since the start. size: tokens of a block."""

    def __init__(self, cost: PrefillCost, seen: SeenBlocks, size: int) -> None:
        if size < 1:
            raise ConfigurationError(f"a block needs at least one token, got {size}")
        self.total = 0.0
        self.repeated = 0.0
        self._cost = cost
        self._seen = seen
        self._size = size

    def touched(self, start: int, end: int) -> slice:
        """The blocks that contain positions start … end − 1."""
        return slice(start // self._size, -(-end // self._size))

    def prefilled(self, start: int, end: int, names: Sequence[int]) -> None:
        """Positions start … end − 1 of a request were computed. names: of its blocks in `touched`; the last ones may
        have none, because only full blocks do."""
        cost, seen, size, at = self._cost, self._seen, self._size, start // self._size * self._size
        self.total += cost.flops(start, end)
        since: int | None = None  # where a run of repeated blocks begins
        for name in names:
            following = at + size
            if seen.add(name) if following <= end else name in seen:
                since = max(start, at) if since is None else since
            elif since is not None:
                self.repeated += cost.flops(since, at)
                since = None
            at = following
        if since is not None:
            self.repeated += cost.flops(since, min(end, at))

    def decoded(self, names: Sequence[int]) -> None:
        """Decoding filled these blocks. Their first computation is no prefill, but computing them again is."""
        for name in names:
            self._seen.add(name)


class UsageSums:
    """Sums over time of the KV usage, from which its deviation in any window follows: the article's MUV.

        MUV = √(mean of squares − square of the mean)

    Both means are over time. Counters of the three sums give them for each window between two scrapes.

    seconds: time that was observed. usage, squared: integrals of the usage and of its square over that time."""

    __slots__ = ("seconds", "squared", "usage")

    def __init__(self) -> None:
        self.seconds = self.usage = self.squared = 0.0

    def add(self, seconds: float, usage: float) -> None:
        """Counts seconds of constant usage, a share of all blocks."""
        self.seconds += seconds
        self.usage += usage * seconds
        self.squared += usage * usage * seconds

    @property
    def deviation(self) -> float:
        """Standard deviation over the time so far; 0 before there is any."""
        if not self.seconds:
            return 0.0
        mean = self.usage / self.seconds
        return sqrt(max(self.squared / self.seconds - mean * mean, 0.0))


class EvictionLatency:
    """End-to-end latency of requests, and of those that ran while blocks were evicted (the article's P99 of these).

    A request ran under eviction if the pool evicted a cached block between its first admission and its end.

    under: latencies of requests that ran under eviction. without: of all others. Requests in flight are remembered
    by id until `ended` or `dropped`."""

    def __init__(self) -> None:
        self.under, self.without = Histogram(SECONDS), Histogram(SECONDS)
        self._began: dict[str, int] = {}

    def admitted(self, request_id: str, evictions: int) -> None:
        """evictions: of the pool so far. Only the first admission counts."""
        self._began.setdefault(request_id, evictions)

    def ended(self, request_id: str, evictions: int, seconds: float) -> bool:
        """A request ended after `seconds`. Returns whether it ran under eviction; one that was never admitted did not
        run, and counts nowhere."""
        began = self._began.pop(request_id, None)
        if began is None:
            return False
        under = evictions > began
        (self.under if under else self.without).add(seconds)
        return under

    def dropped(self, request_id: str) -> None:
        """Forgets an aborted request."""
        self._began.pop(request_id, None)
