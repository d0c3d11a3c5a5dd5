"""How hot a prefix node is: how often it was used, how recently, how deep it lies (HotPrefix §3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Layered", "NodeUses", "UsesSource"]


@dataclass(frozen=True, slots=True)
class NodeUses:
    """The uses of one node.

    frequency: uses, also those before an eviction. clock: max_age after a use, and one less after each ageing, at
    least 0. depth: nodes from the root.
    """

    frequency: int
    clock: int
    depth: int = 1

    @property
    def hotness(self) -> float:
        """frequency · clock (HotPrefix Eq. 6). A full filter drops the smallest first."""
        return float(self.frequency * self.clock)


class UsesSource(Protocol):
    """Gives the uses of nodes, by the hash of a node's last block."""

    def get(self, key: int) -> NodeUses | None:
        """The node's uses; None for an unknown node."""
        ...


class Layered:
    """The pool-wide view, and the engine's own uses for nodes that the view lacks, as without a directory."""

    def __init__(self, first: UsesSource, fallback: UsesSource) -> None:
        self._first = first
        self._fallback = fallback

    def get(self, key: int) -> NodeUses | None:
        return self._first.get(key) or self._fallback.get(key)
