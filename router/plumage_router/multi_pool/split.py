"""Which pool of a gateway serves a request: the shares of a model's pools, and the model to fall back to. Pure.

A conversation keeps its pool, because its cached prefix is there, and because a canary should answer whole
conversations. So the draw is a hash of what all turns of a conversation have in common, and every router draws the
same. If the drawn pool has no replica, the pools that have one share its conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import xxhash

__all__ = ["Route", "choose", "conversation_key"]

_MOST: Final = 1024  # characters of a text that count


class Route(NamedTuple):
    """shares: pools with their weights, of which some are above 0. fallback: the name of another model; empty without
    one."""

    shares: Sequence[tuple[str, int]]
    fallback: str = ""


def choose(routes: Mapping[str, Route], name: str, key: str, available: Callable[[str], bool]) -> str:
    """The pool for a conversation; empty for an unknown name. available: whether a pool has a replica, or gets one.

    If no pool is available, also by fallbacks, it is the one that would have had the request.
    """
    drawn = ""
    seen: set[str] = set()
    while name and name not in seen and (route := routes.get(name)) is not None:
        seen.add(name)
        first = _draw(route.shares, name, key)
        drawn = drawn or first
        if available(first):
            return first
        if others := [share for share in route.shares if share[1] and share[0] != first and available(share[0])]:
            return _draw(others, f"{name} without {first}", key)  # else all of them would go to the next pool
        name = route.fallback
    return drawn


def _draw(shares: Sequence[tuple[str, int]], name: str, key: str) -> str:
    """name: makes the draws of different models independent."""
    if len(shares) == 1:
        return shares[0][0]
    drawn: int = xxhash.xxh3_64_intdigest(f"{name}\0{key}".encode("utf-8", "surrogatepass"))
    place = drawn * sum(weight for _, weight in shares) >> 64
    for pool, weight in shares:
        place -= weight
        if place < 0:
            return pool
    raise AssertionError("the place is below the sum of the weights")


def conversation_key(tenant: str, body: Mapping[str, Any]) -> str:
    """What all turns of a conversation have in common: the tenant, and the client's cache key or the first user
    message. Other requests have the beginning of their first text."""
    given = body.get("prompt_cache_key")
    if isinstance(given, str) and given:
        return f"{tenant}\0{given[:_MOST]}"
    for field in ("messages", "input", "prompt"):
        if (found := body.get(field)) is not None:
            return f"{tenant}\0{_text(_first(found))}"
    return tenant


def _first(found: Any) -> Any:
    """The first message of a user, or the first entry."""
    if not isinstance(found, list):
        return found
    for entry in found[:_MOST]:
        if isinstance(entry, dict) and entry.get("role") == "user":
            return entry.get("content")
    return found[0] if found else ""


def _text(found: Any) -> str:
    """The beginning of a text, of the first part of a message, or of token ids."""
    if isinstance(found, list) and found and isinstance(found[0], dict):
        found = found[0]
    if isinstance(found, dict):
        found = next((found[name] for name in ("text", "content") if isinstance(found.get(name), str)), "")
    if isinstance(found, list):
        return " ".join(str(entry)[:_MOST] for entry in found[:_MOST] if isinstance(entry, int | str))[:_MOST]
    return found[:_MOST] if isinstance(found, str) else ""
