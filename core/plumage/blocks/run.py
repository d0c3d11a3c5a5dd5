"""A run: consecutive cached blocks of one path that share one access history.

Runs are the nodes of the prefix tree. A tree of single blocks would need a Python step per block per request; with
runs a request costs a step per *node*, which is also what HotPrefix (§3.2) means by a node: its frequency, length
and depth have a meaning because every block inside was used by the same requests. A request that leaves a run in the
middle splits it there; a request that goes on below a run it inserted itself makes it longer.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Run"]


class Run:
    """hashes: block hashes, parent before child. start: blocks above the first one. children: cached child runs.

    holds: requests whose cached part ends exactly at this run's end. busy: holds plus busy children, so that it is
    zero only when no request uses any block here or below. uses: requests that used the run while it was cached.
    fresh: nobody but its inserter has used it, and the policy lets it grow. rank: belongs to the eviction policy.
    """

    __slots__ = (
        "busy",
        "children",
        "fresh",
        "hashes",
        "holds",
        "inserted",
        "parent",
        "rank",
        "start",
        "used",
        "uses",
    )

    def __init__(self, hashes: list[int], parent: Run | None, now: float) -> None:
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
        self.rank: float = 0.0

    def __len__(self) -> int:
        return len(self.hashes)

    def __repr__(self) -> str:
        return f"Run(start={self.start}, blocks={len(self.hashes)}, uses={self.uses}, busy={self.busy})"

    @property
    def depth(self) -> int:
        """Depth in nodes; a root has 1."""
        return sum(1 for _ in self.path())

    @property
    def evictable(self) -> bool:
        """A leaf that no request uses: the only kind that may lose blocks."""
        return not self.busy and not self.children

    def path(self) -> Iterator[Run]:
        """This run, its parent, and so on up to the root."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def split(self, blocks: int) -> Run:
        """Cut the first `blocks` blocks off into a new run, the parent of this one, and return it.

        The new run is the upper one, so that children and holds, which hang on the end, stay where they are.
        """
        upper = Run(self.hashes[:blocks], self.parent, self.inserted)
        upper.start = self.start
        upper.children = 1
        upper.busy = 1 if self.busy else 0
        upper.uses, upper.used, upper.fresh, upper.rank = self.uses, self.used, self.fresh, self.rank
        self.hashes = self.hashes[blocks:]
        self.start += blocks
        self.parent = upper
        return upper
