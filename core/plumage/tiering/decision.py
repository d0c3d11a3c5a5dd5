"""Where a prefix node belongs, by recency, frequency, place in the tree, memory pressure (the article's tier decision).

Recent and frequent nodes stay in the GPU. Recent but rare ones stay while others hang below them; as leaves they stay
under low pressure, go to host memory under high, and are dropped under critical pressure. Stale ones go down when they
were used often, and are dropped when not. Host memory full: to disk, where there is one.
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
    """Shares of KV memory in use at which pressure is high, and critical. The article gives none; these are ours."""

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
    """recent, frequent: against the caller's thresholds. leaf: no cached child."""

    recent: bool
    frequent: bool
    leaf: bool


def decide_tier(node: NodeFacts, pressure: Pressure, *, host_full: bool = False, disk: bool = False) -> Tier:
    """The tier `node`, now in the GPU, belongs to. An inner node never leaves before its children."""
    if not node.leaf or (node.recent and (node.frequent or pressure is Pressure.LOW)):
        return Tier.GPU
    if node.recent:
        return Tier.NONE if pressure is Pressure.CRITICAL else _below(host_full, disk)
    return _below(host_full, disk) if node.frequent else Tier.NONE


def _below(host_full: bool, disk: bool) -> Tier:
    if not host_full:
        return Tier.HOST
    return Tier.DISK if disk else Tier.NONE
