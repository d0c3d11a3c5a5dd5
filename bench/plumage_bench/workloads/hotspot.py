"""A prefix that becomes hot and cools, beside other requests at a constant rate.

A request of the hot prefix has a tail of its own. The others belong to groups with prefixes of their own.
`system_tokens` begin every prompt. The hot prefix's rate goes from `low` to `high` and back along straight lines.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage_bench.workloads.arrivals import Timed
from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["HOT", "HotspotShape", "hotspot_arrivals", "rate_at"]

HOT = -1
"""The group of the hot prefix."""


@dataclass(frozen=True, slots=True)
class HotspotShape:
    """others: their requests a second. low, high: those of the hot prefix, which has 60 % of all at its peak. quiet,
    rise, peak, fall, cool: seconds of the phases, in this order. hot_tokens: of the hot prefix; the others share
    `group_tokens` within their group. tail_tokens: of each prompt's own end."""

    others: float = 6.0
    low: float = 0.3
    high: float = 9.0
    quiet: float = 60.0
    rise: float = 60.0
    peak: float = 90.0
    fall: float = 30.0
    cool: float = 300.0
    hot_tokens: int = 4096
    tail_tokens: int = 1024
    groups: int = 64
    group_tokens: int = 1024
    system_tokens: int = 0
    output_tokens: int = 4
    block_size: int = 16

    @property
    def seconds(self) -> float:
        return self.quiet + self.rise + self.peak + self.fall + self.cool


def rate_at(shape: HotspotShape, at: float) -> float:
    """Requests a second of the hot prefix, at a time since the start."""
    risen = (at - shape.quiet) / shape.rise
    fallen = (at - shape.quiet - shape.rise - shape.peak) / shape.fall
    return shape.low + (shape.high - shape.low) * max(0.0, min(risen, 1.0, 1.0 - fallen))


def hotspot_arrivals(shape: HotspotShape, seed: int) -> Timed:
    """Poisson arrivals, thinned from those of the highest rate."""
    rng = random.Random(f"hotspot-{seed}")
    names = BlockNames(rng, shape.block_size)
    system = names.stretch(shape.system_tokens)
    hot_end, group_end = shape.system_tokens + shape.hot_tokens, shape.system_tokens + shape.group_tokens
    hot = names.extend(system, hot_end)
    groups = [names.extend(system, group_end) for _ in range(shape.groups)]
    arrivals: list[tuple[float, Prompt]] = []
    now = 0.0
    most = shape.others + shape.high
    while (now := now + rng.expovariate(most)) < shape.seconds:
        drawn = rng.random() * most - shape.others
        if drawn >= rate_at(shape, now):
            continue
        group = HOT if drawn >= 0.0 else rng.randrange(shape.groups)
        prefix, end = (hot, hot_end) if group == HOT else (groups[group], group_end)
        tokens = end + shape.tail_tokens
        arrivals.append((now, Prompt(tokens, names.extend(prefix, tokens), shape.output_tokens, group)))
    return Timed(arrivals)
