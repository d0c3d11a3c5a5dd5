"""Requests for LoRA adapters: their popularity is Zipf's, and each adapter has a system prompt of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass

from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["AdaptersShape", "adapter_prompts"]


@dataclass(frozen=True, slots=True)
class AdaptersShape:
    """exponent: of the popularity, 0 for equal shares. output_tokens: the mean of exponential lengths."""

    adapters: int = 16
    exponent: float = 1.0
    requests: int = 1500
    system_tokens: int = 512
    own_tokens: int = 512
    output_tokens: int = 100
    block_size: int = 16


def adapter_prompts(shape: AdaptersShape, seed: int) -> list[Prompt]:
    """All prompts in the order of arrival. `group` is the adapter's number, the most popular first."""
    rng = random.Random(f"adapters-{seed}")
    names = BlockNames(rng, shape.block_size)
    adapters = range(shape.adapters)
    systems = [names.stretch(shape.system_tokens) for _ in adapters]
    weights = [(number + 1) ** -shape.exponent for number in adapters]
    tokens = shape.system_tokens + shape.own_tokens
    return [
        Prompt(tokens, names.extend(systems[one], tokens), 1 + int(rng.expovariate(1 / shape.output_tokens)), one)
        for one in rng.choices(adapters, weights, k=shape.requests)
    ]
