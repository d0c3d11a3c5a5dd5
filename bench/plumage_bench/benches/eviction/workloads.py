"""What eviction is judged on: the order of prompts, how many run at once, and how large the cache is.

Prompts come from `plumage_bench.workloads`; the papers leave cache sizes open where they speak of GPUs, so ours are
said here.
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
"""Requests held at once: 32–64 in HotPrefix §5.2. BBH has 27 tasks, and 64 would hold all of them: nothing to evict."""


@dataclass(frozen=True, slots=True)
class Workload:
    """prompts in order of service; `batch` of them hold their blocks at once; capacity in blocks. turns: prompts of
    one group are turns of a conversation, so the next starts when the one before has ended."""

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
    """Blocks touched between two uses of a group's prefix: one prompt of each group."""
    first_round = gsp_prompts(GspShape(groups=64, queries=1, round_robin=True, block_size=BLOCK), 0)
    return sum(len(prompt.blocks) for prompt in first_round)


def few_shot(seed: int, suite: str, room: float) -> Workload:
    """A suite, shuffled. The cache has `room` times what all its prefixes and a batch's own parts need together."""
    shape = FEWSHOT_SUITES[suite]
    batch = SUITE_BATCH[suite]
    own = batch * (shape.question_tokens + shape.output_tokens)
    capacity = int((shape.subjects * shape.example_tokens + own) * room / BLOCK)
    return Workload(suite, fewshot_prompts(shape, seed), batch, capacity)


def multi_turn(seed: int, capacity: int, batch: int = 16) -> Workload:
    """128 conversations; each that has rounds left may come next, with equal chances."""
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
