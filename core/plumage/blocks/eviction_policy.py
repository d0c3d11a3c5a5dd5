"""The interface of eviction policies, for the simulator's pool and for vLLM's.

The pool owns the prefix tree. Its nodes are *runs* (`plumage.blocks.run`): consecutive blocks with one access history.
The pool reports each change of a run to the policy and asks it for victims. Only *evictable leaves* lose blocks, from
their end: runs that no request uses and that have no cached child. (A child is useless without its parent.) The calls
are for runs, not for blocks, so a request's cost does not depend on its length.

The interface stands beside the tree that calls it. The policies are in `plumage.eviction`, above this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plumage.blocks.run import Name, Run

__all__ = ["EvictionPolicy"]


class EvictionPolicy(Protocol):
    """Chooses the order in which leaves are evicted. Every method is O(1) or O(log n). `now` is the pool's clock in
    seconds."""

    at_once: int
    """The most blocks that a run loses by one choice. Then the policy chooses again."""

    def recall(self, hashes: Sequence[Name]) -> Sequence[int]:
        """Blocks `hashes`, a chain, are about to be cached. Returns the lengths, ascending, at which to cut it into
        runs, because the policy remembers different histories for the parts. Usually empty: one run."""
        ...

    def insert(self, run: Run, now: float) -> None:
        """`run` became cached and is in use."""
        ...

    def access(self, run: Run, now: float) -> None:
        """Counts one more request that uses the whole run. Called for ancestors first."""
        ...

    def grow(self, run: Run, blocks: int, now: float) -> None:
        """The request that inserted `run` appended `blocks` blocks to it."""
        ...

    def split(self, upper: Run, lower: Run) -> None:
        """`upper` was cut off the start of `lower` and gets a copy of its history."""
        ...

    def idle(self, run: Run) -> None:
        """The last request that used `run` has ended. Called for descendants first."""
        ...

    def release(self, run: Run) -> None:
        """`run` became an evictable leaf."""
        ...

    def hold(self, run: Run) -> None:
        """`run` is in use again, so it is no evictable leaf any more."""
        ...

    def shrink(self, run: Run, evicted: Sequence[Name]) -> None:
        """The evictable leaf lost the blocks `evicted` from its end. If it has none left, it is no longer cached."""
        ...

    def need(self, blocks: int) -> None:
        """`blocks` blocks are about to be evicted. Calls of `victim` follow."""
        ...

    def victim(self, now: float) -> Run:
        """The evictable leaf that loses blocks next. StateError if there is none."""
        ...

    def clear(self) -> None:
        """The cache was reset."""
        ...
