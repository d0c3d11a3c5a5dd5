"""How many bytes a token of this model's prompts has: a guess where no engine has counted, and nothing is tokenized.

It hangs on the script. A text of emoji has a token for each byte or two, one of words a token for four to six, and
requests of a kind come in rows: a median over all of them would promise the next text of words three times its tokens.
So prompts are told apart by how much of them is not ASCII, and each sort has its own median.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from plumage.hashing.chunks import CHUNK

__all__ = ["LOOKED_AT", "TokenRate"]

_KEPT = 31  # prompts of a sort; odd, so that the median is one of them
LOOKED_AT = 2048  # bytes: the end, for what is at the beginning was counted most often
_ASCII: Final = bytes(range(128))
_SORTS: Final = (1 / 16, 1 / 2)  # not ASCII: hardly anything, some, most of it


class TokenRate:
    """bytes_per_token: over prompts of all sorts, and the guess for a sort that no engine has counted yet."""

    __slots__ = ("_all", "_by_sort", "_rates", "bytes_per_token")

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self.bytes_per_token = bytes_per_token  # a guess, until the first answer
        self._all: deque[float] = deque(maxlen=_KEPT)
        self._by_sort = tuple(deque[float](maxlen=_KEPT) for _ in range(len(_SORTS) + 1))
        self._rates: list[float | None] = [None] * len(self._by_sort)

    def of(self, text: bytes) -> float:
        """Bytes a token of a prompt like this one."""
        return self._rates[_sort(text)] or self.bytes_per_token

    def learn(self, text: bytes, tokens: int, size: int | None = None) -> None:
        """An engine counted `tokens` in it. Short prompts are mostly template and say little. size: of the whole text
        in bytes, where `text` is only its end."""
        size = len(text) if size is None else size
        if tokens > 0 and size >= CHUNK:
            rate, sort = size / tokens, _sort(text)
            self._all.append(rate)
            self._by_sort[sort].append(rate)
            self._rates[sort] = _median(self._by_sort[sort])
            self.bytes_per_token = _median(self._all)


def _median(seen: deque[float]) -> float:
    """A mean would follow the few that are far from all others."""
    return sorted(seen)[len(seen) // 2]


def _sort(text: bytes) -> int:
    """By the share of its bytes that are no ASCII."""
    end = text[-LOOKED_AT:]
    if end.isascii():
        return 0
    share = len(end.translate(None, _ASCII)) / len(end)
    return sum(share >= bound for bound in _SORTS)
