"""What must restart a pod, as one short hash; what need not, left out of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["digest", "without"]


def digest(value: object) -> str:
    """Sixteen hexadecimal characters; equal for equal JSON, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without(settings: Mapping[str, Any], live: Iterable[str]) -> dict[str, Any]:
    """The settings less those that a running process takes up by itself, or that only the next one needs."""
    left_out = frozenset(live)
    return {key: value for key, value in settings.items() if key not in left_out}
