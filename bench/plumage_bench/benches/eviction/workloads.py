"""The workloads of eviction benchmarks: the order of prompts, the batch size, and the cache size.

Prompts come from `plumage_bench.workloads`. The papers give no cache sizes where they name GPUs, so the sizes here are
Plumage's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from plumage_bench.workloads import (
    FEWSHOT_SUITES,
    GspShape,
    MultiturnShape,
    Prompt,
    conversations,
    fewshot_prompts,
    gsp_prompts,
)  # fmt: skip

__all__ = ["BLOCK", "SUITE_BATCH", "Workload", "few_shot", "gsp_loop_blocks", "gsp_worst_order", "multi_turn"]

BLOCK = 16
SUITE_BATCH = {"mmlu": 64, "bbh": 32, "hellaswag": 32, "ceval": 32}
"""Concurrent requests: 32–64 in HotPrefix §5.2. BBH has 27 tasks: 64 requests would use all, and nothing be evicted."""


@dataclass(frozen=True, slots=True)
class Workload:
    """prompts in order of service; `batch` of them use their blocks at the same time; capacity in blocks. turns:
    prompts of one group are turns of a conversation, so the next starts when the one before has ended."""

    name: str
    prompts: Sequence[Prompt]
    batch: int
    capacity: int
    turns: bool = False


def gsp_worst_order(seed: int, capacity: int) -> Workload:
    """KVRouting Table 3: 64 groups × 32 prompts, one of each group in turn; one at a time, as in its analysis."""
    shape = GspShape(groups=64, queries=32, round_robin=True, block_size=BLOCK)
    return Workload("GSP worst order", gsp_prompts(shape, seed), 1, capacity)


def gsp_loop_blocks() -> int:
    """Blocks used between two uses of a group's prefix: one prompt of each group."""
    first_round = gsp_prompts(GspShape(groups=64, queries=1, round_robin=True, block_size=BLOCK), 0)
    return sum(len(prompt.blocks) for prompt in first_round)


def few_shot(seed: int, suite: str, room: float) -> Workload:
    """A suite, shuffled. The cache has `room` times the size that all its prefixes and a batch's own parts need
    together."""
    shape = FEWSHOT_SUITES[suite]
    batch = SUITE_BATCH[suite]
    own = batch * (shape.question_tokens + shape.output_tokens)
    capacity = int((shape.subjects * shape.example_tokens + own) * room / BLOCK)
    return Workload(suite, fewshot_prompts(shape, seed), batch, capacity)


def multi_turn(seed: int, capacity: int, batch: int = 16) -> Workload:
    """128 conversations. Each one that has rounds left is next with equal probability."""
    rng = random.Random(f"turns-{seed}")
    waiting = [list(reversed(rounds)) for rounds in conversations(MultiturnShape(block_size=BLOCK), seed)]
    prompts: list[Prompt] = []
    while waiting:
        index = rng.randrange(len(waiting))
        prompts.append(waiting[index].pop())
        if not waiting[index]:
            waiting[index] = waiting[-1]
            waiting.pop()
    return Workload("multi-turn", prompts, batch, capacity, turns=True)
