"""What a plan may ask for. Each action can be done twice without harm, since a plan may be cut short anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plumage_operator.observed import ChildKey, Object

__all__ = ["Action", "Annotate", "Apply", "CreateSecret", "Delete", "EmitEvent", "WriteStatus"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Write a child: create it, or put it by server-side apply. known: it is there and ours, as far as we were told."""

    child: Object
    known: bool


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Create a Secret with a random token under each of these entries, unless there is one of its name."""

    secret: Object
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a child that the spec no longer asks for; uid, so that nothing newer of that name is removed."""

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
    """An event on the pool. child: kind and name of the child that it is about; no event where the API server refused
    the action on that child."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    child: ChildKey | None = None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the pool's status, if the pool is still as it was read."""

    status: Mapping[str, Any]


Action = Apply | CreateSecret | Delete | Annotate | EmitEvent | WriteStatus
