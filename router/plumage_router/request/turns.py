"""Finds the previous turn of a conversation by the texts of its messages, without a session's name.

Each request of a conversation repeats the messages of the one before it, then has the model's answer and what followed.
So a request has two keys: one of the messages at its own end, and one of those at the end of the previous request.
Messages of the system are left out: they are what clients change most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["Turn", "turn_of"]

_SEARCHED: Final = 256  # messages, from the end, among which the last answer is looked for
_HASHED: Final = 256  # characters at each end of a message
_TELLING: Final = 64  # characters that one message alone needs: many conversations begin with "Hello"
_SYSTEM: Final = ("system", "developer")


class Turn(NamedTuple):
    """own: the key of this request. previous: that of the request before it; None for a conversation's first, and where
    it could be of other conversations too. messages: those that are not the system's."""

    own: int
    previous: int | None
    messages: int


def turn_of(messages: Sequence[Mapping[str, Any]], salt: str) -> Turn | None:
    """Returns the keys of a chat, which are valid in this process; None if it could be of others too.

    salt: what conversations must share to share cached prefixes, such as tenant and adapter.
    """
    own = _key(messages, len(messages), salt)
    if own is None:
        return None
    answer = end = len(messages)
    lowest = max(0, end - _SEARCHED)
    while answer > lowest and messages[answer - 1].get("role") != "assistant":
        answer -= 1
    while answer > lowest and messages[answer - 1].get("role") == "assistant":
        answer -= 1
    system = 0
    while system < end and messages[system].get("role") in _SYSTEM:
        system += 1
    return Turn(own, _key(messages, answer, salt) if answer > lowest else None, end - system)


def _key(messages: Sequence[Mapping[str, Any]], end: int, salt: str) -> int | None:
    """The key of the last two messages before `end`, or of a long one alone. None if there are none."""
    key: int | None = None
    telling = False
    for at in range(end - 1, max(-1, end - 1 - _SEARCHED), -1):
        message = messages[at]
        role = message.get("role")
        if role in _SYSTEM:
            continue
        content = message.get("content")
        if type(content) is str:  # nearly all are
            length, head, tail = len(content), content[:_HASHED], content[-_HASHED:]
        else:
            length, head, tail = _outline(content)
        ids = () if len(message) == 2 else (_id(message, "tool_call_id"), *_calls(message))
        found = hash((salt, key, role, length, head, tail, ids))
        if key is not None:
            return found
        key, telling = found, length >= _TELLING
    return key if telling else None


def _outline(content: object) -> tuple[int, str, str]:
    """The length of the text in a message's parts, and its ends."""
    if not isinstance(content, list):
        return 0, "", ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    texts = [text for text in parts if isinstance(text, str)]
    if not texts:
        return 0, "", ""
    return sum(map(len, texts)), texts[0][:_HASHED], texts[-1][-_HASHED:]


def _calls(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of an answer's calls of tools."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    return tuple(_id(call, "id") for call in calls if isinstance(call, dict))


def _id(part: Mapping[str, Any], field: str) -> str:
    found = part.get(field)
    return found if isinstance(found, str) else ""
