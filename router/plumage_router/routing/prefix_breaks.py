"""Detects prompts whose early bytes changed since the previous turn of their conversation.

An engine computes again all that follows the first changed byte. A date or a counter in the system prompt, tools in
another order or a history without its oldest messages therefore cost most of a long prompt in each turn. The answers
stay right, so nobody notices but by the bill.

The previous prompt is kept and compared. Lost is what stands unchanged in both prompts behind a difference. A prompt
that only continues the previous one, or belongs to another conversation, loses nothing.

Pure accounting: the clock is an argument. No text of a prompt leaves this module.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plumage_router.request.prompt import Prompt

__all__ = ["Cause", "Difference", "PrefixBreak", "PrefixBreaks", "find_difference"]

KEPT: Final = 65_536  # bytes of each prompt: what changes stands at its beginning
MOST_BYTES: Final = 32 << 20  # of all prompts together
MOST_TURNS: Final = 4096
MAX_AGE: Final = 600.0  # seconds; an older prefix may have left the caches anyway
MIN_LOST: Final = 1024  # bytes; less is not worth a report
_SLACK: Final = 512  # bytes by which a match of whole chunks may end before the previous prompt's end
_PROBE: Final = 64  # bytes that are looked for behind the difference
_SKIPPED: Final = (0, 64, 256, 1024, 4096, 16_384, 32_768)  # bytes behind the difference where a probe begins
_WORD: Final = 64  # bytes by which a difference is widened to whole words
_TRIMMED: Final = 256  # bytes; fewer are an edit, not messages
_MOST_SORTED: Final = 32_768  # bytes
_SPACES: Final = b" \t\r\n\"',{}[]()<>"
_ID: Final = re.compile(rb"[0-9a-fA-F][0-9a-fA-F-]{7,}")
_NUMBER: Final = re.compile(rb"\d+")
_CALENDAR: Final = re.compile(
    rb"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun|am|pm)[a-z]*\b", re.I
)


class Cause(StrEnum):
    """What changed."""

    DATE_OR_NUMBER = "DateOrNumber"  # a date, a time or a counter
    IDENTIFIER = "Identifier"  # a UUID or a hash
    ORDER = "Order"  # the same bytes in another order, such as tools or the keys of an object
    TRIMMED = "HistoryTrimmed"  # messages are missing
    INSERTED = "Inserted"
    CHANGED = "Changed"


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """lost_tokens: prompt tokens that could have been cached; an estimate."""

    cause: Cause
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class Difference:
    """at: bytes that both prompts share. resumes: where the new prompt equals the previous one again.

    lost: bytes from there on that could have been cached.
    """

    cause: Cause
    at: int
    resumes: int
    lost: int


@dataclass(slots=True)
class _Prompt:
    """text: its first bytes. size: all of its bytes."""

    text: bytes
    size: int
    since: float


class PrefixBreaks:
    """The latest prompt of each conversation. Call `check` once a request.

    rate: bytes per token of a prompt. `counts`: breaks by cause. `lost_tokens`: prompt tokens that could have been
    cached, by cause.
    """

    def __init__(self, rate: Callable[[bytes], float]) -> None:
        self._rate = rate
        self.counts: Counter[str] = Counter()
        self.lost_tokens: Counter[str] = Counter()
        self._prompts: OrderedDict[int, _Prompt] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def check(self, prompt: Prompt, matched: int, now: float) -> PrefixBreak | None:
        """Returns how the prompt broke the prefix of its previous turn; None if it did not, or no such turn is known.

        matched: bytes at its beginning that a replica has.
        """
        turn = prompt.turn
        if turn is None or not prompt.text:
            return None
        last = self._take(turn.previous)
        self._keep(turn.own, prompt, now)
        if last is None or now - last.since > MAX_AGE or matched + _SLACK >= min(last.size, prompt.size):
            return None
        found = find_difference(last.text, prompt.text[:KEPT], last.size)
        if found is None or (lost := found.lost - max(0, matched - found.resumes)) < MIN_LOST:
            return None
        tokens = round(lost / self._rate(prompt.text))
        self.counts[found.cause] += 1
        self.lost_tokens[found.cause] += tokens
        return PrefixBreak(found.cause, tokens)

    def _take(self, key: int | None) -> _Prompt | None:
        last = self._prompts.pop(key, None) if key is not None else None
        if last is not None:
            self._bytes -= len(last.text)
        return last

    def _keep(self, key: int, prompt: Prompt, now: float) -> None:
        self._take(key)
        kept = self._prompts[key] = _Prompt(prompt.text[:KEPT], prompt.size, now)
        self._bytes += len(kept.text)
        while self._bytes > MOST_BYTES or len(self._prompts) > MOST_TURNS:
            self._bytes -= len(self._prompts.popitem(last=False)[1].text)


def find_difference(old: bytes, new: bytes, old_size: int) -> Difference | None:
    """Compares the beginnings of two prompts. old_size: bytes of the whole previous prompt.

    Returns None if less than MIN_LOST bytes behind the first difference stand in both.
    """
    at = _common_start(old, new)
    best: tuple[int, int, int] | None = None  # bytes that are equal, and where they begin in `old` and in `new`
    for skipped in _SKIPPED:
        probe = old[at + skipped : at + skipped + _PROBE]
        if len(probe) < _PROBE:
            break
        same = at + skipped  # first where nothing moved: a text that repeats itself is found in many places
        found = same if new.startswith(probe, same) else new.find(probe, at)
        if found < 0:
            continue
        before = _common_end(old[at : at + skipped], new[at:found])
        begins, continues = at + skipped - before, found - before
        length = _common_start(old[begins:], new[continues:])
        if best is None or length > best[0]:
            best = length, begins, continues
        if begins + length + _PROBE >= len(old):
            break
    if best is None:
        return None
    length, begins, continues = best
    lost = length + (old_size - len(old) if begins + length == len(old) else 0)
    return Difference(_cause(old, new, at, begins, continues), at, continues, lost) if lost >= MIN_LOST else None


def _cause(old: bytes, new: bytes, at: int, old_end: int, new_end: int) -> Cause:
    """The difference is old[at:old_end] and new[at:new_end]."""
    start = at
    while start > max(0, at - _WORD) and old[start - 1] not in _SPACES:
        start -= 1
    tail = 0
    while tail < _WORD and old_end + tail < len(old) and old[old_end + tail] not in _SPACES:
        tail += 1
    was, became = old[start : old_end + tail], new[start : new_end + tail]
    if _without_dates(was) == _without_dates(became):
        return Cause.DATE_OR_NUMBER
    if _ID.sub(b"#", was) == _ID.sub(b"#", became):
        return Cause.IDENTIFIER
    if len(was) == len(became) <= _MOST_SORTED and sorted(was) == sorted(became):
        return Cause.ORDER
    if new_end == at and old_end - at >= _TRIMMED:
        return Cause.TRIMMED
    return Cause.INSERTED if old_end == at else Cause.CHANGED


def _without_dates(text: bytes) -> bytes:
    return _CALENDAR.sub(b"@", _NUMBER.sub(b"0", text))


def _common_start(one: bytes, other: bytes) -> int:
    """Bytes at the start that are equal."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_end(one: bytes, other: bytes) -> int:
    """Bytes at the end that are equal."""
    return _common_start(one[::-1], other[::-1])
