"""The tier of a prefix node, by recency, frequency, place in the tree and memory pressure (the article's tier
decision).

Recent and frequent nodes stay in the GPU. Recent but rare inner nodes stay. Recent but rare leaves stay under low
pressure, move to host memory under high, and are dropped under critical pressure. Stale nodes move to host memory if
they were used often, else they are dropped. If host memory is full, nodes move to disk, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from plumage.errors import ConfigurationError

__all__ = ["NodeFacts", "Pressure", "PressureLevels", "Tier", "decide_tier"]


class Tier(Enum):
    GPU = "GPU"
    HOST = "Host"
    DISK = "Disk"
    NONE = "None"


class Pressure(Enum):
    LOW = "Low"
    HIGH = "High"
    CRITICAL = "Critical"


@dataclass(frozen=True, slots=True)
class PressureLevels:
    """Shares of KV memory in use from which pressure is high or critical. The article has no values; these are
    Plumage's."""

    high: float = 0.8
    critical: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.high < self.critical <= 1:
            raise ConfigurationError(f"pressure levels need 0 < high < critical <= 1, got {self.high}, {self.critical}")

    def of(self, usage: float) -> Pressure:
        """The pressure at `usage`, a share of KV memory."""
        if usage >= self.critical:
            return Pressure.CRITICAL
        return Pressure.HIGH if usage >= self.high else Pressure.LOW


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """recent, frequent: compared with the caller's thresholds. leaf: no cached child."""

    recent: bool
    frequent: bool
    leaf: bool


def decide_tier(node: NodeFacts, pressure: Pressure, *, host_full: bool = False, disk: bool = False) -> Tier:
    """The tier for `node`, which is in the GPU now. An inner node never leaves before its children."""
    if not node.leaf or (node.recent and (node.frequent or pressure is Pressure.LOW)):
        return Tier.GPU
    if node.recent:
        return Tier.NONE if pressure is Pressure.CRITICAL else _below(host_full, disk)
    return _below(host_full, disk) if node.frequent else Tier.NONE


def _below(host_full: bool, disk: bool) -> Tier:
    if not host_full:
        return Tier.HOST
    return Tier.DISK if disk else Tier.NONE
