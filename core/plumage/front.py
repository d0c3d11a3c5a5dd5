"""The front of a dict that is used as a queue: its oldest keys, which are dropped first.

`next(iter(d))` walks over all entries that were deleted at the front since the dict was last resized. Of a dict with
65,536 keys these are up to 109,226 (CPython 3.11), of one with 800,000 two millions. So many oldest keys are fetched
in one walk. An OrderedDict needs no walk, and 1.8 times the memory.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, Generic, TypeVar

__all__ = ["Front"]

Key = TypeVar("Key")

_WALKS: Final = 64  # in the time in which all keys of a full dict are dropped


class Front(Generic[Key]):
    """entries: the dict. capacity: about how many keys it has when the oldest are dropped.

    Call `left` for each key that is deleted from `entries`, or deleted and added again as the newest."""

    __slots__ = ("_at_once", "_entries", "_keys")

    def __init__(self, entries: dict[Key, Any], capacity: int) -> None:
        self._entries = entries
        self._at_once = max(1, capacity // _WALKS)
        self._keys: dict[Key, None] = {}  # the oldest is last: popitem takes it without a walk

    def left(self, key: Key) -> None:
        """Removes the key from its place. Unknown ones are ignored."""
        self._keys.pop(key, None)

    def drop(self) -> None:
        """Delete the oldest key of `entries`. KeyError if there is none."""
        if not self._keys:
            self._keys = dict.fromkeys(reversed(list(islice(self._entries, self._at_once))))
        del self._entries[self._keys.popitem()[0]]
