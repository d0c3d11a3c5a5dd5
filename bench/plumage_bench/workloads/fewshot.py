"""Few-shot suites (HotPrefix §5.1): every question of a subject follows the same worked examples.

The means of the examples' lengths are the paper's: MMLU 57 subjects × about 723 tokens and one output token, BBH's
chain of thought about 567 with long outputs, HellaSwag about 753, CEVAL about 1673. (Its §1 and §5.1 disagree about
which length belongs to which.) The paper does not give the distribution of lengths, the number and length of questions,
and BBH's outputs; these are Plumage's. `zipf` > 0 makes some subjects more popular, also a variant of Plumage's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from plumage_bench.workloads.prompts import BlockNames, Prompt, lengths_around

__all__ = ["FEWSHOT_SUITES", "FewshotShape", "fewshot_prompts"]


@dataclass(frozen=True, slots=True)
class FewshotShape:
    """Tokens are means. `questions`: of the whole suite."""

    subjects: int
    example_tokens: float
    question_tokens: float = 90.0
    output_tokens: float = 1.0
    questions: int = 4096
    zipf: float = 0.0
    block_size: int = 16


FEWSHOT_SUITES: Mapping[str, FewshotShape] = {
    "mmlu": FewshotShape(subjects=57, example_tokens=723),
    "bbh": FewshotShape(subjects=27, example_tokens=567, output_tokens=160),
    "hellaswag": FewshotShape(subjects=192, example_tokens=753),
    "ceval": FewshotShape(subjects=52, example_tokens=1673),
}


def fewshot_prompts(shape: FewshotShape, seed: int) -> list[Prompt]:
    """All questions in the order of arrival. Each draws its subject."""
    rng = random.Random(f"fewshot-{seed}")
    names = BlockNames(rng, shape.block_size)
    examples = lengths_around(rng, shape.example_tokens, shape.subjects)
    prefixes = [names.stretch(tokens) for tokens in examples]
    weights = [1.0 / (rank + 1) ** shape.zipf for rank in range(shape.subjects)]
    subjects = rng.choices(range(shape.subjects), weights, k=shape.questions)
    questions = lengths_around(rng, shape.question_tokens, shape.questions, 0.5)
    outputs = _outputs(rng, shape)
    prompts = []
    for subject, question, output in zip(subjects, questions, outputs, strict=True):
        tokens = examples[subject] + question
        prompts.append(Prompt(tokens, names.extend(prefixes[subject], tokens), output, subject))
    return prompts


def _outputs(rng: random.Random, shape: FewshotShape) -> list[int]:
    """A suite with a mean of one output token has one for every question."""
    if shape.output_tokens <= 1.0:
        return [1] * shape.questions
    return lengths_around(rng, shape.output_tokens, shape.questions, 0.5)
