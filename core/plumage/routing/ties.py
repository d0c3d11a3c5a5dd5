"""The lowest score wins; equals are drawn at random.

A tie given to the first in the list sends every cold request to one replica (KVRouting's code does), and two routers
with the same view then melt it together.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.interface import Choice, Randomness, ReplicaState

__all__ = ["lowest", "lowest_index"]


def lowest_index(scores: Sequence[float], rng: Randomness) -> int:
    """Where the least score is, at random among equals."""
    best = min(scores)
    index = scores.index(best)
    equals = scores.count(best)
    for _ in range(rng.randrange(equals) if equals > 1 else 0):
        index = scores.index(best, index + 1)
    return index


def lowest(replicas: Sequence[ReplicaState], scores: Sequence[float], rng: Randomness) -> Choice:
    """The candidate with the least score, at random among equals."""
    return Choice(replicas[lowest_index(scores, rng)].slot, scores)
