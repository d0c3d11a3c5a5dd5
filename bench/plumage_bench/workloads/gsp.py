"""Generated shared prefix (KVRouting §5, App. A; SGLang's benchmark): groups of prompts that differ in their tails.

128 groups × 32 prompts; the groups cycle through 512, 1024, 2048, 4096 and 8192 prompt tokens, a `shared` part of which
is the group's prefix. Order: shuffled, or the worst case for recency, one prompt of each group in turn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["GspShape", "gsp_prompts"]


@dataclass(frozen=True, slots=True)
class GspShape:
    groups: int = 128
    queries: int = 32
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    shared: float = 0.5
    output_tokens: int = 4
    round_robin: bool = False
    block_size: int = 16


def gsp_prompts(shape: GspShape, seed: int) -> list[Prompt]:
    """All prompts in the order of arrival."""
    rng = random.Random(f"gsp-{seed}")
    names = BlockNames(rng, shape.block_size)
    lengths = [shape.lengths[group % len(shape.lengths)] for group in range(shape.groups)]
    prefixes = [names.stretch(int(length * shape.shared)) for length in lengths]
    prompts = [
        Prompt(lengths[group], names.extend(prefixes[group], lengths[group]), shape.output_tokens, group)
        for _ in range(shape.queries)
        for group in range(shape.groups)
    ]
    if not shape.round_robin:
        rng.shuffle(prompts)
    return prompts
