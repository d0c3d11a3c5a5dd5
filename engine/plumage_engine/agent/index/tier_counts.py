"""Counts by storage tier, packed into one integer, because a cache has hundreds of thousands of them.

Tiers are the directory's: 1 GPU, 2 CPU, 3 storage. GONE is worse than all of them. Each has 24 bits; a full count
stays full, so that it never overflows into the next.
"""

from __future__ import annotations

__all__ = ["BITS", "CPU", "GONE", "GPU", "STORAGE", "best", "count", "minus", "of_medium", "plus"]

GPU, CPU, STORAGE, GONE = 1, 2, 3, 4

BITS = 24
_FULL = (1 << BITS) - 1
_MEDIA = {None: GPU, "GPU": GPU, "CPU": CPU}


def of_medium(medium: str | None) -> int:
    """The tier of vLLM's medium; None is the GPU, and names of later versions are storage."""
    return _MEDIA.get(medium, STORAGE)


def count(tally: int, tier: int) -> int:
    return tally >> (tier - 1) * BITS & _FULL


def plus(tally: int, tier: int) -> int:
    """Adds one to the tier."""
    return tally if count(tally, tier) == _FULL else tally + (1 << (tier - 1) * BITS)


def minus(tally: int, tier: int) -> int:
    """Subtracts one; a tier that has none stays as it is."""
    return tally - (1 << (tier - 1) * BITS) if count(tally, tier) else tally


def best(tally: int) -> int:
    """The fastest tier with a count, GONE when there is none."""
    if tally & _FULL:
        return GPU
    if tally >> BITS & _FULL:
        return CPU
    return STORAGE if tally >> 2 * BITS & _FULL else GONE
