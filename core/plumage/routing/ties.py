"""The lowest score wins; equals are drawn at random.

If the first of equals won, as in KVRouting's code, every cold request would reach one replica. Two routers with the
same view would overload it together.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.interface import Choice, Randomness, ReplicaState

__all__ = ["lowest", "lowest_index"]


def lowest_index(scores: Sequence[float], rng: Randomness) -> int:
    """The index of the lowest score; equals are drawn."""
    best = min(scores)
    if best != best:  # NaN, of a policy of another package: `index` would not find it
        return 0
    index = scores.index(best)
    equals = scores.count(best)
    for _ in range(rng.randrange(equals) if equals > 1 else 0):
        index = scores.index(best, index + 1)
    return index


def lowest(replicas: Sequence[ReplicaState], scores: Sequence[float], rng: Randomness) -> Choice:
    """The candidate with the lowest score; equals are drawn."""
    return Choice(replicas[lowest_index(scores, rng)].slot, scores)
