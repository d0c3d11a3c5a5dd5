"""Decides whether an evicted node is worth a copy to host memory (HotPrefix §3.3.2).

A node needs a minimum number of uses. If room is lacking, it must also be hotter than every resident that it replaces.
The minimum is checked first: most evicted nodes were used once, and copying them would cost bandwidth. How often those
come back depends on the load: conversations and agents use each block again soon, questions to one document never do.
So the minimum follows what was seen, unless it is set (`LeastUses`, decision 0315).

Erratum: the paper's algorithm ignores the length of the new node. Here the victims' tokens must cover it, or it is not
admitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from plumage import defaults
from plumage.errors import ConfigurationError
from plumage.hotness.cuckoo import mix64
from plumage.hotness.priority_formula import parse_formula
from plumage.tiering.node import TierNode

__all__ = ["PRIORITY", "AdmissionPlan", "LeastUses", "plan_admission"]

_SELECTIVE: Final = 2  # uses, while copies after one use do not come back
_SAMPLED: Final = 16  # one chain of that many is copied after one use all the same, to notice when that changes

PRIORITY = parse_formula(defaults.HOST_PRIORITY)
"""The paper's hotness for admission and promotion (HotPrefix Eq. 6). Users may configure another formula."""


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """admitted: copy the node. victims: residents to drop before that."""

    admitted: bool
    victims: tuple[TierNode, ...] = ()


_REFUSED = AdmissionPlan(False)


class LeastUses:
    """The uses that a node needs. fixed: always that many; None: 1 while copies after one use come back, else 2.

    least: share of those copies that requests must load before they leave host memory. The link takes about a twentieth
    of the time to compute a block (16 tokens of Llama 3 8B over PCIe 4.0). So less does not pay.
    window: number of such blocks with a known result for each decision.
    """

    def __init__(self, fixed: int | None = None, *, least: float = 0.05, window: int = 256) -> None:
        if (fixed is not None and fixed < 0) or not 0 <= least <= 1 or window < 1:
            raise ConfigurationError("admission: fixed must be at least 0, least within 0 and 1, window at least 1")
        self._fixed = fixed
        self._least = least
        self._window = window
        self._pays = True
        self._loaded = self._wasted = 0

    @property
    def adapts(self) -> bool:
        """Whether results change the answer."""
        return self._fixed is None

    @property
    def usual(self) -> int:
        """The uses that most nodes need."""
        return (1 if self._pays else _SELECTIVE) if self._fixed is None else self._fixed

    def of(self, chain: int) -> int:
        """The uses that a node needs. chain: hash of a block that all its parts have in common."""
        return 1 if self._fixed is None and mix64(chain) % _SAMPLED == 0 else self.usual

    def count_outcomes(self, *, loaded: int = 0, wasted: int = 0) -> None:
        """Counts blocks that were copied after one use. loaded: a request used them. wasted: evicted before that."""
        self._loaded += loaded
        self._wasted += wasted
        if self._loaded + self._wasted >= self._window:
            self._pays = self._loaded >= self._least * (self._loaded + self._wasted)
            self._loaded = self._wasted = 0


def plan_admission(
    node: TierNode,
    coldest_first: Iterable[TierNode],
    free_tokens: int,
    min_frequency: int,
) -> AdmissionPlan:
    """Decide about `node`, evicted from the GPU. `coldest_first`: residents that may be replaced, in that order; read
    only as far as needed."""
    if node.frequency < min_frequency:
        return _REFUSED
    victims: list[TierNode] = []
    residents = iter(coldest_first)
    while free_tokens < node.tokens:
        resident = next(residents, None)
        if resident is None or resident.hotness >= node.hotness:
            return _REFUSED
        victims.append(resident)
        free_tokens += resident.tokens
    return AdmissionPlan(True, tuple(victims))
