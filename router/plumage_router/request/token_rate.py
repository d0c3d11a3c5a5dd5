"""Estimates the bytes per token of this model's prompts. Nothing is tokenized: engines report token counts.

The rate depends on the script. A text of emoji has a token for one or two bytes, a text of words one for four to six.
Similar requests come in rows, so one median over all prompts would be wrong by a factor of three after a change. So
prompts are classified by their share of bytes that are not ASCII, and each class has its own median.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from plumage.hashing.chunks import PIECE

__all__ = ["SAMPLE", "TokenRate"]

_KEPT = 31  # prompts of a class; odd, so that the median is one of them
SAMPLE = 2048  # bytes at the end of a prompt; its beginning was counted with earlier requests
_ASCII: Final = bytes(range(128))
_CLASS_BOUNDS: Final = (1 / 16, 1 / 2)  # share of bytes that are not ASCII


class TokenRate:
    """`bytes_per_token`: over all prompts; used for a class without a count."""

    __slots__ = ("_all", "_by_class", "_rates", "bytes_per_token")

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self.bytes_per_token = bytes_per_token  # a guess, until the first answer
        self._all: deque[float] = deque(maxlen=_KEPT)
        self._by_class = tuple(deque[float](maxlen=_KEPT) for _ in range(len(_CLASS_BOUNDS) + 1))
        self._rates: list[float | None] = [None] * len(self._by_class)

    def of(self, text: bytes) -> float:
        """Bytes per token of prompts like this one."""
        return self._rates[_class(text)] or self.bytes_per_token

    def learn(self, text: bytes, tokens: int, size: int | None = None) -> None:
        """Learns from `tokens`, the engine's count. Prompts shorter than a piece are ignored: they are mostly template.

        size: bytes of the whole prompt, if `text` is only its end.
        """
        size = len(text) if size is None else size
        if tokens > 0 and size >= PIECE:
            rate, kind = size / tokens, _class(text)
            self._all.append(rate)
            self._by_class[kind].append(rate)
            self._rates[kind] = _median(self._by_class[kind])
            self.bytes_per_token = _median(self._all)


def _median(seen: deque[float]) -> float:
    """The median ignores the few prompts that differ much."""
    return sorted(seen)[len(seen) // 2]


def _class(text: bytes) -> int:
    """The class of a text by its share of bytes that are not ASCII."""
    end = text[-SAMPLE:]
    if end.isascii():
        return 0
    share = len(end.translate(None, _ASCII)) / len(end)
    return sum(share >= bound for bound in _CLASS_BOUNDS)
