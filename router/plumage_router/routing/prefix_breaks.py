"""Detects prompts whose early bytes changed since the previous turn of their conversation.

An engine computes again all that follows the first changed byte. So most of a long prompt is computed in each turn with
a date or counter in the system prompt. Tools in another order cost as much, and so does a history without its oldest
messages. The answers are right, so users notice only that they are slow.

The previous prompt is kept and compared. Lost is what stands unchanged in both prompts behind a difference: its longest
part, and its end. A prompt that only continues the previous one, or belongs to another conversation, loses nothing.

Pure accounting: the clock is an argument. No text of a prompt leaves this module.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from plumage.hashing.chunks import ENDS
from plumage_router.request.prompt import Prompt

__all__ = ["BreakCause", "Difference", "PrefixBreak", "PrefixBreaks", "find_difference"]

KEPT: Final = 65_536  # bytes of each prompt: what changes stands at its beginning
MOST_BYTES: Final = 8 << 20  # of all prompts together
MOST_TURNS: Final = 4096
MAX_AGE: Final = 600.0  # seconds; an older prefix may have left the caches anyway
MIN_LOST: Final = 1024  # bytes; less is not worth a report
_PROBE: Final = 64  # bytes that are looked for behind the difference
_SKIPPED: Final = (0, 64, 256, 1024, 4096, 16_384, 32_768)  # bytes behind the difference where a probe begins
_TAIL: Final = 576  # bytes before the end where the last probe begins: a template's end may differ in the next turn
_WORD: Final = 64  # bytes by which a difference is widened to whole words
_SHORT: Final = 1024  # bytes; a longer difference is no date and no id
_REMOVED: Final = 256  # bytes; fewer are an edit
_MOST_COUNTED: Final = 32_768  # bytes of a difference that are counted to find another order
_SPACES: Final = b" \t\r\n\"',{}[]()<>"
_ID: Final = re.compile(rb"[0-9a-fA-F][0-9a-fA-F-]{7,}")
_NUMBER: Final = re.compile(rb"\d+")
_CALENDAR: Final = re.compile(
    rb"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    rb"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs(?:day)?)?"
    rb"|fri(?:day)?|sat(?:urday)?|sun(?:day)?|am|pm)\b",
    re.I,
)


class BreakCause(StrEnum):
    """What changed."""

    DATE_OR_NUMBER = "DateOrNumber"  # a date, a time or a counter
    IDENTIFIER = "Identifier"  # a UUID or a hash
    ORDER = "Order"  # the same bytes in another order, such as tools or the keys of an object
    TRIMMED = "HistoryTrimmed"  # messages are missing
    REMOVED = "Removed"  # a part is missing, and no message: some templates drop earlier thoughts
    INSERTED = "Inserted"
    CHANGED = "Changed"


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """lost_tokens: prompt tokens that could have been cached. An estimate, usually too low."""

    cause: BreakCause
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class Difference:
    """at: bytes that both prompts share. resumes: where the new prompt equals the previous one again.

    lost: bytes from there on that could have been cached.
    """

    cause: BreakCause
    at: int
    resumes: int
    lost: int


class _Run(NamedTuple):
    """Equal bytes behind the difference: where they begin in both prompts, and how many."""

    old: int
    new: int
    length: int


@dataclass(slots=True, init=False)
class _Prompt:
    """text: its first bytes. size: all of its bytes. messages: those that are not the system's."""

    text: bytes
    size: int
    messages: int
    since: float

    def __init__(self, text: bytes, size: int, messages: int, since: float) -> None:
        self.text, self.size, self.messages, self.since = text, size, messages, since


class PrefixBreaks:
    """The latest prompts of conversations. Call `check` once a request, and `expire` with each tick.

    rate: bytes per token of a prompt. `counts`: breaks by cause. `lost_tokens`: prompt tokens that could have been
    cached, by cause.
    """

    def __init__(self, rate: Callable[[bytes], float]) -> None:
        self._rate = rate
        self.counts: Counter[str] = Counter()
        self.lost_tokens: Counter[str] = Counter()
        self._prompts: OrderedDict[int, _Prompt] = OrderedDict()  # the oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def check(self, prompt: Prompt, depth: int, now: float) -> PrefixBreak | None:
        """Returns how the prompt broke the prefix of its previous turn; None if it did not, or no such turn is known.

        depth: chunks at its beginning that a replica has.
        """
        turn = prompt.turn
        if turn is None or not prompt.text:
            return None
        text = prompt.text[:KEPT]
        last = self._prompts.get(turn.previous) if turn.previous is not None else None
        repeated = self._keep(turn.own, _Prompt(text, prompt.size, turn.messages, now))
        if last is None or repeated or ENDS[min(depth + 1, len(ENDS) - 1)] >= min(last.size, prompt.size):
            return None
        fewer = turn.messages < last.messages + 2  # an answer and a message follow the previous turn
        found = find_difference(last.text, text, last.size, prompt.size, fewer=fewer)
        if found is None or (lost := found.lost - max(0, ENDS[depth] - found.resumes)) < MIN_LOST:
            return None
        tokens = round(lost / self._rate(prompt.text))
        self.counts[found.cause] += 1
        self.lost_tokens[found.cause] += tokens
        return PrefixBreak(found.cause, tokens)

    def expire(self, now: float) -> None:
        """Forgets old prompts."""
        while self._prompts and next(iter(self._prompts.values())).since < now - MAX_AGE:
            self._drop_oldest()

    def _keep(self, key: int, prompt: _Prompt) -> bool:
        """Returns whether there was a prompt with this key: a client repeats a request."""
        before = self._prompts.pop(key, None)
        self._prompts[key] = prompt
        self._bytes += len(prompt.text) - (len(before.text) if before is not None else 0)
        while self._bytes > MOST_BYTES or len(self._prompts) > MOST_TURNS:
            self._drop_oldest()
        return before is not None

    def _drop_oldest(self) -> None:
        self._bytes -= len(self._prompts.popitem(last=False)[1].text)


def find_difference(old: bytes, new: bytes, old_size: int, new_size: int, *, fewer: bool) -> Difference | None:
    """Compares the beginnings of two prompts. fewer: messages are missing in the new one.

    old_size, new_size: bytes of the whole prompts. Returns None if less than MIN_LOST bytes behind the first difference
    stand in both.
    """
    at = _common_start(old, new)
    best: _Run | None = None
    for skipped in _SKIPPED:
        run = _run_at(old, new, at, at + skipped)
        if run is not None and (best is None or run.length > best.length):
            best = run
            if run.old + run.length + _PROBE >= len(old):
                break
    tail = _run_at(old, new, at, len(old) - _TAIL)
    first = best or tail
    if first is None:
        return None
    lost = first.length
    if tail is not None and tail.old >= first.old + first.length and tail.new >= first.new + first.length:
        lost += tail.length
    last = tail or first
    if last.old + last.length == len(old) or last.new + last.length == len(new):
        lost += min(old_size - last.old, new_size - last.new) - last.length  # what follows was not kept
    if lost < MIN_LOST:
        return None
    return Difference(_cause(old, new, at, first, last, fewer=fewer), at, first.new, lost)


def _run_at(old: bytes, new: bytes, at: int, place: int) -> _Run | None:
    """The equal bytes about a place in the old prompt; None if its bytes are not found behind the difference."""
    probe = old[place : place + _PROBE]
    if place < at or len(probe) < _PROBE:
        return None
    found = place if new.startswith(probe, place) else new.find(probe, at)  # first where nothing moved
    if found < 0:
        return None
    before = _common_end(old[at:place], new[at:found])
    begins, continues = place - before, found - before
    return _Run(begins, continues, _common_start(old[begins:], new[continues:]))


def _cause(old: bytes, new: bytes, at: int, first: _Run, last: _Run, *, fewer: bool) -> BreakCause:
    """The difference lies between `at` and the first run, or the last."""
    was, became = _widened(old, new, at, first)
    if max(len(was), len(became)) <= _SHORT:
        if _without_dates(was) == _without_dates(became):
            return BreakCause.DATE_OR_NUMBER
        if _ID.sub(b"#", was) == _ID.sub(b"#", became):
            return BreakCause.IDENTIFIER
    if any(_is_reordered(old[at : run.old], new[at : run.new]) for run in (first, last)):
        return BreakCause.ORDER
    if first.new == at and first.old - at >= _REMOVED:
        return BreakCause.TRIMMED if fewer else BreakCause.REMOVED
    return BreakCause.INSERTED if first.old == at else BreakCause.CHANGED


def _widened(old: bytes, new: bytes, at: int, run: _Run) -> tuple[bytes, bytes]:
    """The difference, with the rest of the words at its ends."""
    start, tail = at, 0
    while start > max(0, at - _WORD) and old[start - 1] not in _SPACES:
        start -= 1
    while tail < min(_WORD, run.length) and old[run.old + tail] not in _SPACES:
        tail += 1
    return old[start : run.old + tail], new[start : run.new + tail]


def _is_reordered(was: bytes, became: bytes) -> bool:
    same = 1 < len(was) == len(became) <= _MOST_COUNTED and sum(was) == sum(became)
    return same and Counter(was) == Counter(became)


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
