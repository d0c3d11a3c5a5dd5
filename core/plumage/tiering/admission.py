"""Which evicted nodes are worth the copy to host memory (HotPrefix §3.3.2).

A node must have been used often enough, ever; then, where room is lacking, it must be hotter than every resident that
goes for it. The threshold stands first, because most evicted nodes were used once and copying them costs bandwidth.

Erratum: the paper's algorithm ignores the incoming length. Here the victims' tokens cover it, or nothing is admitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plumage import defaults
from plumage.hotness.priority_formula import parse_formula
from plumage.tiering.node import TierNode

__all__ = ["PRIORITY", "AdmissionPlan", "plan_admission"]

PRIORITY = parse_formula(defaults.HOST_PRIORITY)
"""The paper's measure of hotness, of admission and of promotion (HotPrefix Eq. 6); users may write another."""


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """admitted: copy the node. victims: residents to drop for it first."""

    admitted: bool
    victims: tuple[TierNode, ...] = ()


_REFUSED = AdmissionPlan(False)


def plan_admission(
    node: TierNode,
    coldest_first: Iterable[TierNode],
    free_tokens: int,
    min_frequency: int = defaults.MIN_FREQUENCY,
) -> AdmissionPlan:
    """Decide about `node`, evicted from the GPU. `coldest_first`: residents that may go, in that order; read lazily."""
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
