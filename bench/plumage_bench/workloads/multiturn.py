"""Multi-turn conversations (KVRouting App. A): 128 clients with 2, 4, 6 or 8 rounds, each with 1024 new tokens.

A round's prompt has all earlier messages and answers, and the new input. A client sends its next round only after the
answer. Ready clients wait for the next time of a Poisson process, first come first served, as in SGLang's benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["MultiturnShape", "conversation_rounds", "conversations"]


@dataclass(frozen=True, slots=True)
class MultiturnShape:
    """at_once: the number of concurrent clients; the next one begins when one has ended. None: all begin at once."""

    clients: int = 128
    rounds: tuple[int, ...] = (2, 4, 6, 8)
    input_tokens: int = 1024
    output_tokens: int = 4
    system_tokens: int = 0
    block_size: int = 16
    at_once: int | None = None

    def __post_init__(self) -> None:
        assert self.at_once is None or self.at_once > 0


def conversations(shape: MultiturnShape, seed: int) -> list[list[Prompt]]:
    """One list of rounds for each client, in the order in which clients begin."""
    rng = random.Random(f"multiturn-{seed}")
    names = BlockNames(rng, shape.block_size)
    system = names.stretch(shape.system_tokens)
    rounds = [shape.rounds[client % len(shape.rounds)] for client in range(shape.clients)]
    rng.shuffle(rounds)
    return [conversation_rounds(shape, names, system, client, count) for client, count in enumerate(rounds)]


def conversation_rounds(
    shape: MultiturnShape, names: BlockNames, system: Sequence[int], client: int, count: int
) -> list[Prompt]:
    """The rounds of one client: prefixes of one stretch of blocks."""
    per_round = shape.input_tokens + shape.output_tokens
    history = shape.system_tokens
    everything = names.extend(system, history + count * per_round)
    said = []
    for _ in range(count):
        prompt = history + shape.input_tokens
        history += per_round
        full, answered = prompt // shape.block_size, history // shape.block_size
        said.append(Prompt(prompt, everything[:full], shape.output_tokens, client, everything[full:answered]))
    return said
