"""Which host nodes to copy to the GPU during decode, and which nodes they replace (HotPrefix §3.4, Alg. 2).

The hottest host *roots* (parent in the GPU, or no parent) replace the coldest GPU *leaves*. Replaced leaves are
dropped.

Errata of Alg. 2, each with a test:
- It iterates over host leaves, but must mean roots: a child without its parent is useless in the GPU.
- It may plan one GPU node as the victim of several promotions. Here each victim is used once.
- It compares with the first victim only. Here the node must be hotter than each of its victims.
- "Select more GPU nodes" does not end. Here the victims' tokens must cover the node, or it is not promoted.
- A root whose parent is a planned victim is left out, as the paper says. Nor may the parent of a planned node become a
  victim later.

Additions: a budget, because offloads use the same link; and free room beyond a reserve is used before victims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from plumage.errors import ConfigurationError
from plumage.tiering.node import TierNode

__all__ = ["Promotion", "PromotionBudget", "PromotionTurn", "plan_promotion"]


@dataclass(frozen=True, slots=True)
class Promotion:
    """Copy `node` to the GPU after dropping `victims`."""

    node: TierNode
    victims: tuple[TierNode, ...]


@dataclass(frozen=True, slots=True)
class PromotionBudget:
    """tokens: how many this plan may copy. free_tokens: unused in the GPU. reserve: the part of them for running
    requests, whose next block must not wait for an eviction."""

    tokens: int
    free_tokens: int = 0
    reserve: int = 0


def plan_promotion(
    host_roots: Sequence[TierNode], gpu_leaves: Sequence[TierNode], budget: PromotionBudget
) -> list[Promotion]:
    """The promotions to start now, hottest first, to be copied in one batch. The inputs may have any order."""
    coldest = deque(sorted(gpu_leaves, key=lambda leaf: leaf.hotness))
    dropped: set[int] = set()
    parents: set[int | None] = set()
    plan: list[Promotion] = []
    room, left = max(0, budget.free_tokens - budget.reserve), budget.tokens
    for node in sorted(host_roots, key=lambda root: -root.hotness):
        if node.tokens > left or node.parent in dropped:
            continue
        victims = _victims(node, coldest, room, parents | {node.parent})
        if victims is None:
            continue
        for victim in victims:
            coldest.remove(victim)
            dropped.add(victim.key)
        room += sum(victim.tokens for victim in victims) - node.tokens
        left -= node.tokens
        parents.add(node.parent)
        plan.append(Promotion(node, victims))
    return plan


def _victims(
    node: TierNode, coldest: deque[TierNode], room: int, parents: set[int | None]
) -> tuple[TierNode, ...] | None:
    """The coldest leaves that make room for `node`, never a parent of a planned node. None if they are too hot or too
    few."""
    victims: list[TierNode] = []
    for leaf in coldest:
        if room >= node.tokens or leaf.hotness >= node.hotness:
            break
        if leaf.key not in parents:
            victims.append(leaf)
            room += leaf.tokens
    return tuple(victims) if room >= node.tokens else None


class PromotionTurn:
    """Chooses the steps for promotion: those that only decode, so that copies run while the GPU computes.

    Erratum: with chunked prefill and open arrivals such steps may never come. After `max_wait_steps` steps without one,
    promotion runs in a mixed step, within the same budget.
    """

    def __init__(self, max_wait_steps: int = 32) -> None:
        if max_wait_steps < 1:
            raise ConfigurationError(f"max_wait_steps must be at least 1, got {max_wait_steps}")
        self._max_wait_steps = max_wait_steps
        self._waited = 0
        self._prefilled = False

    def step(self, *, prefill_tokens: int) -> bool:
        """Counts an engine step. True if a promotion plan should run with it."""
        if prefill_tokens:
            self._prefilled = True
            self._waited += 1
        if not self._prefilled or (prefill_tokens and self._waited < self._max_wait_steps):
            return False
        self._prefilled = False
        self._waited = 0
        return True
