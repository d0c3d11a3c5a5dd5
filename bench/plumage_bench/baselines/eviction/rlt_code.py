"""RLT as its authors' code runs it, which is not what they print (KVRouting §4.1, Alg. 1; github.com/fzwark/KVRouting).

Three differences to `rlt.py`, which is the printed form:
- a block is marked when it is inserted, and when a request that leaves a run in the middle splits it there; a request
  that uses whole runs marks nothing, so what is used again and again may be unmarked;
- a phase also starts when the blocks of the cache that are not marked are fewer than those about to be evicted;
- single tokens go, the engine's page being one token: here single blocks, as in the printed form.
"""

from __future__ import annotations

from plumage.blocks.run import Run
from plumage.eviction.rlt import Rlt

__all__ = ["RltCode"]


class RltCode(Rlt):
    """For comparison; `Rlt` is what a manifest's policy of that name means."""

    def access(self, run: Run, now: float) -> None:
        return

    def split(self, upper: Run, lower: Run) -> None:
        if upper.rank != self.phase:
            self._mark(upper, len(upper.hashes))

    def need(self, blocks: int) -> None:
        if self._capacity - self.marked < blocks:
            self._start_phase()
