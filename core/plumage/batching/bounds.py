"""Checks the settings of queues and stop policies. A NaN would pass each later comparison unseen."""

from __future__ import annotations

import math

from plumage.errors import ConfigurationError

__all__ = ["within"]


def within(name: str, value: float, low: float, high: float = math.inf) -> float:
    """`value`, from `low` to `high`, both inclusive; ConfigurationError names the setting and its bounds."""
    if not low <= value <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise ConfigurationError(f"{name} must be {bounds}, got {value!r}")
    return value
