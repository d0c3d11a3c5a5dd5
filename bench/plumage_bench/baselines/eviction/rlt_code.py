"""RLT as in its authors' code, which differs from their paper (KVRouting §4.1, Alg. 1; github.com/fzwark/KVRouting).

There are three differences to `rlt.py`, which follows the paper:
- A block is marked when it is inserted, and when a request that matches only a part of a run splits it. A request that
  uses whole runs marks nothing, so blocks that are used often may be unmarked.
- A phase also starts when the cache has fewer unmarked blocks than are about to be evicted.
- Single tokens are evicted, since the engine's page is one token. Here single blocks are, as in `rlt.py`.
"""

from __future__ import annotations

from plumage.blocks.run import Run
from plumage.eviction.rlt import Rlt

__all__ = ["RltCode"]


class RltCode(Rlt):
    """For comparison only. A manifest's policy of the name Rlt is `Rlt`."""

    def access(self, run: Run, now: float) -> None:
        return

    def split(self, upper: Run, lower: Run) -> None:
        if upper.rank != self.phase:
            self._mark(upper, len(upper.hashes))

    def need(self, blocks: int) -> None:
        if self._capacity - self.marked < blocks:
            self._start_phase()
