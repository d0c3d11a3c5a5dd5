"""The common part of converting other APIs' requests to chats: the result, and readers of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plumage.rendering.errors import RequestShapeError

__all__ = ["AsChat", "content_count", "object_in", "objects"]


class AsChat(NamedTuple):
    """body: of a chat completion, with what a template sees. known: all of the request was converted."""

    body: dict[str, Any]
    known: bool


def object_in(body: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that is an object, empty if it is absent. RequestShapeError for another type."""
    value = body.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise RequestShapeError(field, "must be an object")
    return value or {}


def objects(value: Any, field: str, what: str = "a list of objects") -> list[Mapping[str, Any]]:
    """A list of objects. RequestShapeError for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RequestShapeError(field, f"must be {what}")
    return value


def content_count(items: Sequence[Any]) -> int:
    """The content parts of all messages or items, with those inside of tools' results. An item may be any value."""
    contents = [item.get(name) for item in items if isinstance(item, Mapping) for name in ("content", "output")]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    inner = [part.get("content") for part in parts if isinstance(part, Mapping)]
    return len(parts) + sum(len(content) for content in inner if isinstance(content, list))
