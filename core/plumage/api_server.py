"""A failed call of the Kubernetes API server, as operator, CLI, routers and agents see it. Pure: no client is here.

Their clients differ (decision 0252), but a refusal is the same for all: a Status object with a reason and a message.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from plumage.errors import PlumageError

__all__ = ["ApiServerError", "StatusObject", "read_refusal"]

_LONGEST: Final = 200  # bytes of an answer that is no Status object, for example of a proxy


class ApiServerError(PlumageError):
    """A call of the API server failed.

    status: HTTP's, 0 without an answer.
    reason: Kubernetes' own word, such as Invalid; empty where it gives none.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class StatusObject(NamedTuple):
    """The parts of a Status object that clients use; empty where the answer has none."""

    message: str
    reason: str


def read_refusal(body: bytes) -> StatusObject:
    """Reads the body of an answer with an error. The start of a text that is no JSON object is its message."""
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        return StatusObject(" ".join(body[:_LONGEST].decode(errors="replace").split()), "")
    if not isinstance(found, dict):
        return StatusObject("", "")
    return StatusObject(str(found.get("message") or ""), str(found.get("reason") or ""))
