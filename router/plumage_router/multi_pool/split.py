"""Chooses the pool of a gateway that serves a request, and the one that gets a copy. Pure.

A model has pools with shares, a model to fall back to, and a pool as its mirror.

A conversation keeps its pool, because its cached prefix is there, and because a canary should answer whole
conversations. So the draw is a hash of what all turns of a conversation have in common, and every router draws the
same. If the drawn pool has no replica, the pools that have one share its conversations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import xxhash

from plumage_router.http.paths import RESPONSES_PATH, WITHOUT_DEVICE

__all__ = ["Route", "choose", "conversation_key", "copy_for", "fallbacks", "may_be_copied"]

_MOST: Final = 1024  # characters of a text that count
_TEXTS: Final = ("messages", "input", "prompt", "query", "queries", "text_1", "data_1", "tokens")


class Route(NamedTuple):
    """shares: pools with their weights, of which some are above 0. fallback: the name of another model; empty without
    one. mirror: the pool that gets copies, of so many percent of the conversations; empty without one."""

    shares: Sequence[tuple[str, int]]
    fallback: str = ""
    mirror: str = ""
    percent: int = 0

    @property
    def is_direct(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.shares) == 1 and not self.fallback


def choose(routes: Mapping[str, Route], name: str, key: str, available: Callable[[str], bool]) -> str:
    """The pool for a conversation; empty for an unknown name. available: whether a pool has a replica, or gets one.

    If no pool is available, also by fallbacks, it is the one that would have had the request.
    """
    first = ""
    for route in fallbacks(routes, name):
        drawn = sorted((_place(pool, weight, name, key), pool) for pool, weight in route.shares if weight)
        first = first or drawn[0][1]
        for _, pool in drawn:
            if available(pool):
                return pool
    return first


def fallbacks(routes: Mapping[str, Route], name: str) -> Iterator[Route]:
    """Returns the route of a name, then those that it falls back to, each once."""
    seen: set[str] = set()
    while name not in seen and (route := routes.get(name)) is not None:
        seen.add(name)
        yield route
        name = route.fallback


def _place(pool: str, weight: int, name: str, key: str) -> float:
    """The least one of a conversation's pools gets it: weighted rendezvous hashing (Schindelhauer and Schomaker 2005).
    A larger weight only moves conversations to that pool, and a pool that is away only its own."""
    hashed: int = xxhash.xxh3_64_intdigest(f"{pool}\0{name}\0{key}".encode("utf-8", "surrogatepass"))
    return -math.log((hashed + 1) / 2**64) / weight


def copy_for(route: Route, name: str, key: str, chosen: str) -> str:
    """The pool that gets a copy of a request which `chosen` answers; empty for none. All requests of a conversation are
    copied, or none. A larger percentage only adds conversations."""
    if not route.mirror or route.mirror == chosen:
        return ""
    drawn: int = xxhash.xxh3_64_intdigest(f"copy\0{name}\0{key}".encode("utf-8", "surrogatepass"))
    return route.mirror if drawn * 100 < route.percent * 2**64 else ""


def may_be_copied(path: bytes, body: Mapping[str, Any]) -> bool:
    """Whether a copy has no effect beyond its answer, and says something about an engine's device.

    A response that is stored, continued or generated in the background belongs to the client's own pool.
    """
    if path in WITHOUT_DEVICE:
        return False
    if path == RESPONSES_PATH:
        return body.get("store") is False and not body.get("background") and body.get("previous_response_id") is None
    return True


def conversation_key(tenant: str, body: Mapping[str, Any]) -> str:
    """Returns what all turns of a conversation have in common: the tenant, and the client's cache key or the first user
    message. Other requests have the beginning of their first text or token ids."""
    given = body.get("prompt_cache_key")
    if isinstance(given, str) and given:
        return f"{tenant}\0{given[:_MOST]}"
    return f"{tenant}\0{next((_beginning(_first(body[field])) for field in _TEXTS if body.get(field) is not None), '')}"


def _first(found: Any) -> Any:
    """Returns the content of a user's first message, else the first entry of a list that is no list of token ids."""
    if not isinstance(found, list) or not found or isinstance(found[0], int):
        return found
    users = (entry for entry in found[:_MOST] if isinstance(entry, dict) and entry.get("role") == "user")
    message = next(users, None)
    return found[0] if message is None else message.get("content")


def _beginning(found: Any) -> str:
    """Returns the beginning of a text or of token ids; of a message's parts the first text."""
    if isinstance(found, list) and found and isinstance(found[0], dict):
        parts = [part for part in found[:_MOST] if isinstance(part, dict)]
        return next((text for part in parts if (text := _text_of(part))), _nested(parts[0]))
    if isinstance(found, list):
        return " ".join(str(entry)[:_MOST] for entry in found[:_MOST] if isinstance(entry, int | str))[:_MOST]
    if isinstance(found, dict):
        return _text_of(found) or _nested(found)
    return found[:_MOST] if isinstance(found, str) else ""


def _text_of(part: Mapping[str, Any]) -> str:
    found = (part.get(name) for name in ("text", "content"))
    return next((text[:_MOST] for text in found if isinstance(text, str)), "")


def _nested(part: Mapping[str, Any]) -> str:
    """Returns the first text that is no type, of a part without text such as an image."""
    for name, value in part.items():
        if isinstance(value, str) and name != "type":
            return value[-_MOST:]  # images of one kind begin alike
        if isinstance(value, dict):
            return next((text[-_MOST:] for text in value.values() if isinstance(text, str)), "")
    return ""
