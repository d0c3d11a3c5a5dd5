"""Finds the previous turn of a conversation by the texts of its messages, without a session's name.

Each request of a conversation repeats the messages of the one before it, then has the model's answer and what followed.
So a request has two keys: one of the messages at its own end, and one of those at the end of the previous request.
Messages of the system are left out: they are what clients change most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["Turn", "turn_of"]

_SEARCHED: Final = 64  # messages, from the end, among which the last answer is looked for
_HASHED: Final = 512  # characters at each end of a message
_SYSTEM: Final = ("system", "developer")


class Turn(NamedTuple):
    """own: the key of this request. previous: that of the request before it; None for a conversation's first."""

    own: int
    previous: int | None


def turn_of(messages: Sequence[Mapping[str, Any]], salt: str) -> Turn:
    """Returns the keys of a chat, which are valid in this process. salt: the tenant's, so that no key is of two
    tenants."""
    answer = end = len(messages)
    lowest = max(0, end - _SEARCHED)
    while answer > lowest and messages[answer - 1].get("role") != "assistant":
        answer -= 1
    while answer > lowest and messages[answer - 1].get("role") == "assistant":
        answer -= 1
    return Turn(_key(messages, end, salt) or 0, _key(messages, answer, salt) if answer > lowest else None)


def _key(messages: Sequence[Mapping[str, Any]], end: int, salt: str) -> int | None:
    """The key of the last two messages before `end`, since one alone may be a common word such as "continue". None if
    there are none."""
    key: int | None = None
    for at in range(end - 1, max(-1, end - 1 - _SEARCHED), -1):
        message = messages[at]
        role = message.get("role")
        if role in _SYSTEM:
            continue
        content = message.get("content")
        text = content if isinstance(content, str) else _text(content)
        found = hash((salt, key, role, len(text), text[:_HASHED], text[-_HASHED:]))
        if key is not None:
            return found
        key = found
    return key


def _text(content: object) -> str:
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\0".join(text for text in texts if isinstance(text, str))
