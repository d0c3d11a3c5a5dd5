"""A prompt as a cache sees it: a length, and a name for each of its full blocks. No text, no token ids.

Names are equal exactly where the tokens up to and including the block are equal, as chained block hashes are. A stretch
of tokens that nothing else shares gets consecutive names from a random start, which costs nothing to make.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BlockNames", "Prompt", "lengths_around"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`blocks` names the full blocks of the prompt, `output_blocks` those that its answer completes. `group`: what it
    shares its prefix with (a group, a document, a conversation, a subject)."""

    tokens: int
    blocks: Sequence[int]
    output_tokens: int
    group: int
    output_blocks: Sequence[int] = ()


class BlockNames:
    """Hands out names for stretches of tokens that are new to the world."""

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self._rng = rng
        self.block_size = block_size

    def stretch(self, tokens: int) -> Sequence[int]:
        """Names for the full blocks of a new stretch from the prompt's beginning."""
        start = self._rng.getrandbits(62)
        return tuple(range(start, start + tokens // self.block_size))

    def extend(self, prefix: Sequence[int], tokens: int) -> Sequence[int]:
        """`prefix`, then new names up to a prompt of `tokens` tokens: the block that straddles both is new."""
        start = self._rng.getrandbits(62)
        return (*prefix, *range(start, start + tokens // self.block_size - len(prefix)))


def lengths_around(rng: random.Random, mean: float, count: int, spread: float = 0.35) -> list[int]:
    """`count` log-normal lengths, scaled so that their own mean is `mean`; at least one token."""
    raw = [rng.lognormvariate(0.0, spread) for _ in range(count)]
    scale = mean * count / sum(raw)
    return [max(1, round(value * scale)) for value in raw]
