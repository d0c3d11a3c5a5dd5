"""One line of the report of `plumage doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Verdict"]


class Verdict(Enum):
    GOOD = "ok"
    WARNING = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """remedy: what to do about it, empty where nothing needs to be done."""

    verdict: Verdict
    what: str
    remedy: str = ""
