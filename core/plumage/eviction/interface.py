"""Which cached blocks to evict next: one interface for the simulator's pool and for vLLM's.

The pool owns the prefix tree, whose nodes are *runs* (`plumage.blocks.run`): consecutive blocks with one access
history. It reports each change of a run to the policy and asks for a victim. Only *evictable leaves* may lose blocks,
from their end: runs that no request uses and that have no cached child (a child is useless without its parent). Calls
for runs, not for blocks, keep the cost of a request independent of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plumage.blocks.run import Run

__all__ = ["EvictionPolicy", "Randomness"]


class Randomness(Protocol):
    """The part of `random.Random` that the pure ring uses; the caller seeds it."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class EvictionPolicy(Protocol):
    """Order of the evictable leaves. Every method is O(1) or O(log n); `now` is the pool's clock in seconds."""

    at_once: int
    """Blocks that one choice may cost a run at most; then the policy chooses again."""

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        """Blocks `hashes`, a chain, are about to be cached: the lengths (ascending) at which to cut it into runs,
        because the policy remembers different histories for the parts. Usually empty: one run."""
        ...

    def insert(self, run: Run, now: float) -> None:
        """`run` became cached and is in use."""
        ...

    def access(self, run: Run, now: float) -> None:
        """One more request uses the whole run; called from the root downwards."""
        ...

    def grow(self, run: Run, blocks: int, now: float) -> None:
        """The request that inserted `run` added `blocks` blocks to its end."""
        ...

    def split(self, upper: Run, lower: Run) -> None:
        """`upper` was cut off the start of `lower` and takes over its history."""
        ...

    def idle(self, run: Run) -> None:
        """The last request that used `run` has ended; called from the leaf upwards."""
        ...

    def release(self, run: Run) -> None:
        """`run` became an evictable leaf."""
        ...

    def hold(self, run: Run) -> None:
        """`run` is no evictable leaf any more: in use again."""
        ...

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        """The evictable leaf lost the blocks `evicted` from its end; with none left, the leaf is no longer cached."""
        ...

    def need(self, blocks: int) -> None:
        """`blocks` blocks are about to be evicted; calls of `victim` follow."""
        ...

    def victim(self, now: float) -> Run:
        """The evictable leaf to lose blocks next. StateError when there is none."""
        ...

    def clear(self) -> None:
        """The cache was reset."""
        ...
