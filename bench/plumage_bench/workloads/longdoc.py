"""Long-document question answering (KVRouting App. A, after LooGLE): documents, and all questions about each.

512 documents are cut to 1024, 2048, 4096 or 8192 tokens. LooGLE has about eight questions for each document; the number
and the lengths of questions are drawn here. The order is shuffled, or one question of each document in turn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["LongdocShape", "longdoc_prompts"]


@dataclass(frozen=True, slots=True)
class LongdocShape:
    documents: int = 512
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    questions: tuple[int, int] = (4, 12)
    question_tokens: tuple[int, int] = (24, 96)
    output_tokens: int = 4
    round_robin: bool = False
    block_size: int = 16


def longdoc_prompts(shape: LongdocShape, seed: int) -> list[Prompt]:
    """All questions in the order of arrival."""
    rng = random.Random(f"longdoc-{seed}")
    names = BlockNames(rng, shape.block_size)
    asked: list[tuple[int, Prompt]] = []
    for document in range(shape.documents):
        length = shape.lengths[document % len(shape.lengths)]
        prefix = names.stretch(length)
        for turn in range(rng.randint(*shape.questions)):
            tokens = length + rng.randint(*shape.question_tokens)
            asked.append((turn, Prompt(tokens, names.extend(prefix, tokens), shape.output_tokens, document)))
    if shape.round_robin:
        asked.sort(key=lambda item: item[0])
    else:
        rng.shuffle(asked)
    return [prompt for _, prompt in asked]
