"""A run: consecutive cached blocks of one path that share one access history.

Runs are the nodes of the prefix tree. With runs a request costs a Python step for each node, not for each block. They
are also the nodes of HotPrefix (§3.2): a node has one frequency, length and depth because the same requests used all
its blocks. If a request matches only the first part of a run, the run is split there. A request that adds blocks below
a run that it inserted makes that run longer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

__all__ = ["Name", "Run"]

Name = Any
"""What names a block: its hash. An integer in the simulator, bytes in vLLM; `Any`, so that compiled code takes both."""


class Run:
    """hashes: block hashes, parent before child. start: blocks above the first one. children: cached child runs.

    holds: requests whose cached part ends exactly at this run's end. busy: holds plus busy children; zero only if no
    request uses a block here or below. uses: requests that used the run while it was cached. fresh: only the request
    that inserted it has used it, and the policy lets it grow. owner: the tenant whose salt its blocks have, None
    without one. rank: for use by the eviction policy.
    """

    __slots__ = (
        "busy",
        "children",
        "fresh",
        "hashes",
        "holds",
        "inserted",
        "owner",
        "parent",
        "rank",
        "start",
        "used",
        "uses",
    )

    def __init__(self, hashes: list[Name], parent: Run | None, now: float, owner: Hashable = None) -> None:
        self.hashes = hashes
        self.parent = parent
        self.start: int = 0 if parent is None else parent.start + len(parent.hashes)
        self.children = 0
        self.holds = 0
        self.busy = 0
        self.uses = 1
        self.inserted = now
        self.used = now
        self.fresh = True
        self.owner = owner
        self.rank: float = 0.0

    def __len__(self) -> int:
        return len(self.hashes)

    def __repr__(self) -> str:
        return f"Run(start={self.start}, blocks={len(self.hashes)}, uses={self.uses}, busy={self.busy})"

    @property
    def depth(self) -> int:
        """Depth in nodes. A root has depth 1."""
        return sum(1 for _ in self.path())

    @property
    def evictable(self) -> bool:
        """Whether it is a leaf that no request uses. Only such runs may lose blocks."""
        return not self.busy and not self.children

    def path(self) -> Iterator[Run]:
        """This run, its parent, and so on up to the root."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def split(self, blocks: int) -> Run:
        """Cut the first `blocks` blocks off into a new run, the parent of this one, and return it.

        The new run is the upper one. Children and holds belong to the end of a run, so they need not move.
        """
        upper = Run(self.hashes[:blocks], self.parent, self.inserted, self.owner)
        upper.start = self.start
        upper.children = 1
        upper.busy = 1 if self.busy else 0
        upper.uses, upper.used, upper.fresh, upper.rank = self.uses, self.used, self.fresh, self.rank
        self.hashes = self.hashes[blocks:]
        self.start += blocks
        self.parent = upper
        return upper
