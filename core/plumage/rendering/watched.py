"""The list of messages as a template sees it, keeping count of how far it has been read.

What a template printed so far depends on the messages it has read so far, and on no others: with that count, the text
of the first turns of a conversation can be used again when more turns follow (`incremental`). Everything that looks at
the whole list, its length or its end included, reads past every message.

It is no `list` on purpose: C code (json's encoder, say) would read a list's items behind our back. Where a template
needs a real list, rendering fails and is done again without the watch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, overload

__all__ = ["EVERYTHING", "Reach", "Walk", "WatchedMessages"]

EVERYTHING = sys.maxsize


class Reach:
    """`last`: the highest index read; EVERYTHING once the end was seen; -1 at first."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1

    def to(self, index: int) -> None:
        if index > self.last:
            self.last = index


class WatchedMessages(Sequence[Any]):
    """`messages[offset:]`, read through `reach`."""

    __slots__ = ("messages", "offset", "reach")
    __hash__ = None  # type: ignore[assignment]  # like a list

    def __init__(self, messages: list[Any], reach: Reach, offset: int = 0) -> None:
        self.messages = messages
        self.reach = reach
        self.offset = offset

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and index >= 0:
            return self._at(self.offset + index)
        if isinstance(index, slice) and _is_tail(index):
            return WatchedMessages(self.messages, self.reach, self.offset + (index.start or 0))
        return self._whole()[index]

    def _at(self, index: int) -> Any:
        self.reach.to(index if index < len(self.messages) else EVERYTHING)
        return self.messages[index]

    def __iter__(self) -> Iterator[Any]:
        return Walk(self)

    def __len__(self) -> int:
        return len(self._whole())

    def __bool__(self) -> bool:
        self.reach.to(self.offset if self.offset < len(self.messages) else EVERYTHING)
        return self.offset < len(self.messages)

    def _whole(self) -> list[Any]:
        self.reach.to(EVERYTHING)
        return self.messages[self.offset :]

    def copy(self) -> list[Any]:
        return self._whole()

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._whole()[::-1])

    def __contains__(self, value: object) -> bool:
        return value in self._whole()

    def __eq__(self, other: object) -> bool:
        return self._whole() == (other._whole() if isinstance(other, WatchedMessages) else other)

    def __add__(self, other: Any) -> list[Any]:
        return self._whole() + (other._whole() if isinstance(other, WatchedMessages) else other)

    def __radd__(self, other: Any) -> list[Any]:
        result: list[Any] = other + self._whole()
        return result

    def __repr__(self) -> str:
        return repr(self._whole())


class Walk(Iterator[Any]):
    """One walk over the messages, which knows its position and can be moved forward."""

    __slots__ = ("_watched", "position")

    def __init__(self, watched: WatchedMessages) -> None:
        self._watched = watched
        self.position = watched.offset  # of the next message

    def __next__(self) -> Any:
        position = self.position
        messages = self._watched.messages
        if position >= len(messages):
            self._watched.reach.to(EVERYTHING)
            raise StopIteration
        self.position = position + 1
        self._watched.reach.to(position)
        return messages[position]

    def __len__(self) -> int:
        """Of the whole list: Jinja asks for `loop.length`."""
        return len(self._watched)


def _is_tail(index: slice) -> bool:
    return index.stop is None and index.step is None and (index.start is None or index.start >= 0)
