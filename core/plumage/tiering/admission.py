"""Decides whether an evicted node is worth a copy to host memory (HotPrefix §3.3.2).

A node needs a minimum number of uses. If room is lacking, it must also be hotter than every resident that it replaces.
The minimum is checked first: most evicted nodes were used once, and copying them would cost bandwidth.

Erratum: the paper's algorithm ignores the length of the new node. Here the victims' tokens must cover it, or it is not
admitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plumage import defaults
from plumage.hotness.priority_formula import parse_formula
from plumage.tiering.node import TierNode

__all__ = ["PRIORITY", "AdmissionPlan", "plan_admission"]

PRIORITY = parse_formula(defaults.HOST_PRIORITY)
"""The paper's hotness for admission and promotion (HotPrefix Eq. 6). Users may configure another formula."""


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """admitted: copy the node. victims: residents to drop before that."""

    admitted: bool
    victims: tuple[TierNode, ...] = ()


_REFUSED = AdmissionPlan(False)


def plan_admission(
    node: TierNode,
    coldest_first: Iterable[TierNode],
    free_tokens: int,
    min_frequency: int = defaults.MIN_FREQUENCY,
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
