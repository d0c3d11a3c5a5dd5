"""A prompt as a cache sees it: a length, and a name for each of its full blocks. It has no text and no token ids.

Two names are equal exactly if all tokens up to the end of the block are equal, as for chained block hashes. Tokens that
no other prompt shares get consecutive names from a random start, which is cheap.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BlockNames", "Prompt", "lengths_around"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`blocks` names the full blocks of the prompt, `output_blocks` those that its answer completes. `group`: with what
    it shares its prefix (a group, a document, a conversation, a subject). owner: the tenant; its blocks are nobody
    else's."""

    tokens: int
    blocks: Sequence[int]
    output_tokens: int
    group: int
    output_blocks: Sequence[int] = ()
    owner: str | None = None


class BlockNames:
    """Makes names for new sequences of tokens."""

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self._rng = rng
        self.block_size = block_size

    def stretch(self, tokens: int) -> Sequence[int]:
        """Names for the full blocks of a new sequence, from the prompt's beginning."""
        start = self._rng.getrandbits(62)
        return tuple(range(start, start + tokens // self.block_size))

    def extend(self, prefix: Sequence[int], tokens: int) -> Sequence[int]:
        """`prefix`, then new names up to a prompt of `tokens` tokens. A block with tokens of both parts is new."""
        start = self._rng.getrandbits(62)
        return (*prefix, *range(start, start + tokens // self.block_size - len(prefix)))


def lengths_around(rng: random.Random, mean: float, count: int, spread: float = 0.35) -> list[int]:
    """`count` log-normal lengths, scaled so that their mean is `mean`; each at least one token."""
    raw = [rng.lognormvariate(0.0, spread) for _ in range(count)]
    scale = mean * count / sum(raw)
    return [max(1, round(value * scale)) for value in raw]
