"""One cache for a share of the trace's distinct blocks: the hit ratio of each policy.

An engine never caches a partial block: the next turn continues it, and so has another, longer block in its place. So
ours does not admit partial blocks, and their accesses count as misses. Both sides also run with the other rule, to show
the effect of the rule alone.

An engine names blocks by 64-bit hashes, and a policy may sample by name. So ours runs with several namings of the same
blocks, one for each seed, since a figure must not depend on the blocks that a sample happens to contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from xxhash import xxh3_64_intdigest

from plumage.errors import ConfigurationError
from plumage_bench.benches.trace import libcache, onecache
from plumage_bench.benches.trace.processes import Trace

__all__ = [
    "BOUND",
    "OURS",
    "SHARES",
    "Contender",
    "Margin",
    "Ratio",
    "Ratios",
    "capacities",
    "margin",
    "measure",
    "over_seeds",
]

SHARES = (0.01, 0.03, 0.10, 0.20)
OURS, BOUND = "Hotness", "leaf-OPT"
_LEAST = 100  # blocks
_OWN = {OURS: onecache.hotness_hits, BOUND: onecache.belady_hits}


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy. partial: partial last blocks are offered to it; otherwise they are misses and never cached. naming:
    seed of the hashes that name the blocks; None keeps the trace's ids."""

    policy: str
    partial: bool
    naming: int | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Hits ÷ block accesses, including partial ones, of the whole trace and of the second half of its requests."""

    whole: float
    second: float


Ratios = Mapping[float, Ratio]


@dataclass(frozen=True, slots=True)
class Margin:
    """The best of libCacheSim's policies, and ours ÷ its ratio."""

    best: str
    ratio: float
    ours: float

    @property
    def over(self) -> float:
        return self.ours / self.ratio if self.ratio else 1.0


def measure(trace: Trace, contender: Contender) -> Ratios:
    """Replay the trace with every cache size."""
    chains: Sequence[onecache.Chain] = [r.blocks if contender.partial else r.full_blocks for r in trace]
    if contender.naming is not None:
        chains = _named(chains, contender.naming)
    accesses = [len(request.blocks) for request in trace]
    ratios = {}
    for share, capacity in capacities(trace).items():
        own = _OWN.get(contender.policy)
        hits = own(chains, capacity) if own else libcache.hits(contender.policy, chains, capacity)
        ratios[share] = Ratio(_ratio(hits, accesses), _ratio(_second(hits), _second(accesses)))
    return ratios


def capacities(trace: Trace) -> dict[float, int]:
    """The cache in blocks, by share. ConfigurationError for a trace that is too small to compare policies."""
    distinct = len({block for request in trace for block in request.blocks})
    sizes = {share: int(distinct * share) for share in SHARES}
    if min(sizes.values()) < _LEAST:
        raise ConfigurationError(
            f"the trace has {distinct:,} distinct blocks; {min(SHARES):.0%} of them must be {_LEAST} at least, because "
            f"some policies of libCacheSim end the process in a smaller cache: give {_LEAST / min(SHARES):,.0f} or more"
        )
    return sizes


def over_seeds(runs: Sequence[Ratios], pick: Callable[[Sequence[float]], float] = fmean) -> Ratios:
    """The mean (or another pick) of runs of one policy, size by size."""
    return {
        share: Ratio(pick([run[share].whole for run in runs]), pick([run[share].second for run in runs]))
        for share in SHARES
    }


def _named(chains: Sequence[onecache.Chain], seed: int) -> list[onecache.Chain]:
    """The chains with every id replaced by a hash of it; equal ids have equal hashes."""
    names = {
        block: xxh3_64_intdigest(block.to_bytes(8, "little"), seed=seed) for block in {b for c in chains for b in c}
    }
    return [[names[block] for block in chain] for chain in chains]


def margin(ours: Ratios, theirs: Mapping[str, Ratios], share: float, *, second: bool) -> Margin:
    """Ours and the best of theirs at one size."""

    def read(ratios: Ratios) -> float:
        return ratios[share].second if second else ratios[share].whole

    best = max(theirs, key=lambda name: read(theirs[name]))
    return Margin(best, read(theirs[best]), read(ours))


def _ratio(hits: Sequence[int], accesses: Sequence[int]) -> float:
    return sum(hits) / sum(accesses)


def _second(counts: Sequence[int]) -> Sequence[int]:
    return counts[len(counts) // 2 :] or counts
