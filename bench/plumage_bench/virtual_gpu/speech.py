"""The answers of the virtual device: token ids drawn by seed, prompt and position.

The same prompt with the same sampling seed gets the same answer, in any batch and also after a preemption. So the next
turn of a conversation, which repeats the answer, finds it in the cache, as with a real model.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import xxhash

__all__ = ["Answer", "Speech"]

_TABLE = 1 << 14
_ODD = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: spreads neighbours (Knuth, TAOCP 3, 6.4)
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Answer:
    """key: identifies the prompt. end: the position, from the prompt's first token, of the end token; None for an
    answer that only a limit ends."""

    key: int
    end: int | None


class Speech:
    """words: the ids of answers. end: the id that ends an answer. mean: mean tokens of such an answer, from an
    exponential distribution; None: no answer ends by itself."""

    def __init__(self, words: Sequence[int], *, seed: int, end: int | None = None, mean: int | None = None) -> None:
        rng = random.Random(f"speech {seed}")
        self._table = rng.choices(words, k=_TABLE)
        self._seed = seed
        self._end = end
        self._mean = mean

    def answer(
        self, prompt: Sequence[int], *, seed: int | None = None, least: int = 0, endless: bool = False
    ) -> Answer:
        """The answer to one prompt. least: tokens before an end is allowed. endless: no end is allowed."""
        name = f"{self._seed}/{seed}".encode()
        key = xxhash.xxh3_64_intdigest(array("I", prompt).tobytes(), xxhash.xxh3_64_intdigest(name))
        if self._mean is None or self._end is None or endless:
            return Answer(key, None)
        drawn = round(-log(1.0 - random.Random(key).random()) * self._mean)
        return Answer(key, len(prompt) + max(1, least, drawn))

    def token(self, answer: Answer, position: int) -> int:
        """The id at `position`, counted from the prompt's first token."""
        if answer.end is not None and position >= answer.end:
            assert self._end is not None
            return self._end
        return self._table[self._draw(answer, position) % _TABLE]

    def allowed_token(self, answer: Answer, position: int, allowed: Sequence[int]) -> int:
        """One of `allowed`, for a request with a grammar."""
        return allowed[self._draw(answer, position) % len(allowed)]

    def text(self, answer: Answer, start: int, tokens: int) -> list[int]:
        """This many ids from `start` on: the answer that a client will get."""
        return [self.token(answer, start + index) for index in range(tokens)]

    def _draw(self, answer: Answer, position: int) -> int:
        return ((answer.key + position) * _ODD & _MASK) >> 40
