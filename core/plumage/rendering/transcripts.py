"""Conversations rendered before, so that their next turn finds the text of the earlier ones; bounded in bytes.

A transcript holds a conversation's messages and marks in its text: places in the template's loop over messages that
every conversation with the same beginning reaches in the same state, with the same text printed. Messages are compared,
not hashed: an equal string is found at the speed of memory, and a hit is exact.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Known", "Mark", "Transcript", "TranscriptCache", "as_said"]

_BRANCHES = 4
"""Conversations kept that share their first messages: clients edit and regenerate, examples are shared."""
_CLOSE = 3
"""A transcript with all messages but so many is not worth looking for a better one: a question, an answer, a question.
"""
_MESSAGE_BYTES = 700  # the two dictionaries of a message and a mark
_CHAR_BYTES = 4  # a character is kept in the message and in the text, in 1, 2 or 4 bytes each
_HEAD = 64
Said = dict[str, str] | bytes
Signature = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """Before loop item `turn`: the loop has printed `at` characters, read no message after the one at `reach`, and the
    namespaces hold this."""

    turn: int
    at: int
    reach: int
    namespaces: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """said: the messages as the client sent them; messages: as the template sees them. root: what the loop started
    from, as bytes. text: what the loop printed up to the last mark."""

    said: Sequence[Said]
    messages: Sequence[dict[str, Any]]
    root: bytes
    text: str
    marks: Sequence[Mark]
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        states = sum(len(value) for mark in self.marks for held in mark.namespaces for value in held.values()
                     if isinstance(value, str))  # fmt: skip
        size = _CHAR_BYTES * (len(self.text) + states) + _MESSAGE_BYTES * len(self.said) + len(self.root)
        object.__setattr__(self, "bytes", size)


@dataclass(frozen=True, slots=True)
class Known:
    """A transcript of which the first `common` messages are those of the request."""

    transcript: Transcript
    common: int

    def last_mark(self, root: bytes) -> int:
        """The index of the last mark that depends on common messages only; -1 if there is none."""
        if self.transcript.root == root:
            for index in range(len(self.transcript.marks) - 1, -1, -1):
                if self.transcript.marks[index].reach < self.common:
                    return index
        return -1


class TranscriptCache:
    """The conversations least recently rendered go first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._branches: OrderedDict[Signature, list[Transcript]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._branches.values()))

    def find(self, given: Sequence[Any]) -> Known | None:
        """The transcript that shares most with the conversation `given`."""
        branches = self._branches.get(_signature(given))
        if branches is None:
            return None
        best = Known(branches[0], _common(given, branches[0].said))
        for transcript in branches[1:]:
            if best.common >= len(given) - _CLOSE:
                break
            common = _common(given, transcript.said)
            best = Known(transcript, common) if common > best.common else best
        return best

    def keep(self, transcript: Transcript, given: Sequence[Any], extends: Transcript | None) -> None:
        """Keep it in place of the transcript that it `extends`, if any. `given` is the conversation it is of."""
        if transcript.bytes > self.max_bytes // 8:
            return  # nobody fills the cache alone
        signature = _signature(given)
        branches = self._branches.setdefault(signature, [])
        kept = [other for other in branches if other is not extends][: _BRANCHES - 1]
        self.bytes += transcript.bytes + sum(other.bytes for other in kept) - sum(other.bytes for other in branches)
        branches[:] = [transcript, *kept]
        self._branches.move_to_end(signature)
        while self.bytes > self.max_bytes:
            _, oldest = self._branches.popitem(last=False)
            self.bytes -= sum(other.bytes for other in oldest)


def as_said(message: Any) -> Said:
    """What a client said, to compare with: itself if it is two strings, else bytes that are equal for equal data only
    (`1 == True` would print differently). ValueError if it is no plain data."""
    return (
        {"role": message["role"], "content": message["content"]} if _is_simple(message) else marshal.dumps(message, 0)
    )


def _is_simple(message: Any) -> bool:
    return len(message) == 2 and type(message.get("role")) is str and type(message.get("content")) is str


def _common(given: Sequence[Any], said: Sequence[Said]) -> int:
    for index, (message, known) in enumerate(zip(given, said, strict=False)):
        if message != known and (type(known) is dict or marshal.dumps(message, 0) != known):
            return index
    return min(len(given), len(said))


def _signature(given: Sequence[Any]) -> Signature:
    """Cheap and rarely shared: of the first two messages, who, how much, and how it begins."""
    return (*_glance(given[0]), *_glance(given[1]))


def _glance(message: Any) -> tuple[Any, ...]:
    content = message.get("content")
    return (message.get("role"), len(content), content[:_HEAD]) if type(content) is str else ("", 0, "")
