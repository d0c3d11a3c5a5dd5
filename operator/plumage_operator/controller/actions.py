"""The actions of a plan. Each can be repeated without harm, because a plan may be interrupted anywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plumage_operator.observed import ChildKey, Object

__all__ = ["Action", "Annotate", "Apply", "CreateSecret", "Delete", "EmitEvent", "WriteStatus"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Create a child, or write it by server-side apply. known: the cache has it, and it is ours."""

    child: Object
    known: bool


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Create a Secret with a random token under each of these entries, unless one of its name exists."""

    secret: Object
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child that the spec no longer asks for. uid: protects a newer object of that name."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set annotations of a pod."""

    pod: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Emit an event on the pool. child: the child that it is about; no event if the API server refused the action on
    it.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    child: ChildKey | None = None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the pool's status, if the pool has not changed since it was read."""

    status: Mapping[str, Any]


Action = Apply | CreateSecret | Delete | Annotate | EmitEvent | WriteStatus
