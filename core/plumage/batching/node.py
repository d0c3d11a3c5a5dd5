"""A node of the Chunked Hash Tree: a compressed run of chunk levels, with its best waiting descendant.

A node covers the levels (start, end] of `vector`. Hashes are cumulative, so two vectors that agree at level l agree
below it: one comparison at the end of the run shows whether all of it matches, and a binary search finds a divergence.

The best descendant's key is (measure, arrival, sequence, entry). Below an active node the measure is the levels missing
from the working set. Below an inactive one it is the length, from which the nearest active ancestor subtracts its own
depth. So an inactive subtree's key does not depend on the batch, and a mutation touches one path only.
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush

from plumage.batching.interface import Level, RequestId, Vector

__all__ = ["Arrival", "Entry", "Key", "Node", "Stage"]


class Stage(Enum):
    WAITING = "waiting"
    ACTIVE = "active"
    GONE = "gone"


class Entry:
    """A request in the tree; `node` ends where its vector ends."""

    __slots__ = ("arrival", "node", "request_id", "sequence", "stage")

    def __init__(self, request_id: RequestId, arrival: float, sequence: int, node: Node) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.sequence = sequence
        self.stage = Stage.WAITING
        self.node = node


Arrival = tuple[float, int, Entry]
"""An entry where the earliest comes first; sequences are unique, so a comparison never reaches the entry."""
Key = tuple[int, float, int, Entry]
# (measure, arrival, sequence, stamp, child): stamps are unique, so a comparison never reaches the child.
_Ranked = tuple[int, float, int, int, "Node"]

_SLACK = 16  # stale heap items tolerated beyond the live ones before a heap is rebuilt


class Node:
    """One compressed run. Counts include the whole subtree; `here_*` only requests that end exactly here."""

    __slots__ = (
        "active",
        "children",
        "cold",
        "end",
        "here",
        "here_active",
        "here_waiting",
        "hot",
        "key",
        "parent",
        "stamp",
        "stamps",
        "start",
        "vector",
        "waiting",
        "warm",
    )  # fmt: skip

    def __init__(self, vector: Vector, start: int, end: int, parent: Node | None) -> None:
        self.vector, self.start, self.end, self.parent = vector, start, end, parent
        self.waiting = self.active = self.here_waiting = self.here_active = 0
        self.children: dict[Level, Node] = {}
        self.here: list[Arrival] = []
        self.cold: list[_Ranked] = []  # inactive children, by (length, arrival) of their best
        self.warm: list[_Ranked] = []  # active children, by (missing, arrival) of their best
        self.key: Key | None = None
        self.hot = False  # was active when the parent last got the key
        self.stamp = 0  # this node's valid item in the parent's heap
        self.stamps = 0  # stamps given to children so far

    @property
    def above(self) -> Node:
        """The parent, where there must be one."""
        assert self.parent is not None
        return self.parent

    # -- shape -------------------------------------------------------------------------------------------------------

    def common(self, vector: Vector) -> int:
        """Depth to which `vector`, known to match at `start`, agrees with this run."""
        low, high = self.start + 1, min(self.end, len(vector))
        own = self.vector
        if own[high - 1] == vector[high - 1]:
            return high
        while low < high:  # own[low-1] matches, own[high-1] does not
            middle = (low + high) // 2
            if own[middle - 1] == vector[middle - 1]:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def adopt(self, child: Node) -> Node:
        self.children[child.vector[child.start]] = child
        return child

    def split(self, depth: int) -> Node:
        """Cut this run at `depth`; returns the new upper node, which takes this one's place."""
        parent = self.above
        upper = Node(self.vector, self.start, depth, parent)
        upper.waiting, upper.active = self.waiting, self.active
        parent.adopt(upper)
        self.start, self.parent = depth, upper
        upper.adopt(self)
        self.update_parent()
        upper.refresh()
        return upper

    def leave(self) -> Node:
        """Removes this empty leaf. Returns the parent."""
        parent = self.above
        del parent.children[self.vector[self.start]]
        self.stamp = 0
        return parent

    def dissolve(self) -> Node:
        """Joins this node with its only child, which takes its place. Returns the parent."""
        parent = self.above
        (child,) = self.children.values()
        child.start, child.parent = self.start, parent
        parent.adopt(child)
        self.stamp = 0
        child.update_parent()
        return parent

    # -- best descendant ---------------------------------------------------------------------------------------------

    def offer(self, ranked: Arrival) -> None:
        """Adds a new request that ends here. The nodes above count it, and take its key while it is their best.

        As long as none leaves, only a better descendant replaces the best one.
        """
        arrival, sequence, entry = ranked
        self.here_waiting += 1
        heappush(self.here, ranked)
        measure, active, better = 0 if self.active else self.end, self.active, True
        at: Node | None = self
        while at is not None:
            at.waiting += 1
            if better:
                if at.active and not active:
                    measure, active = measure - at.end, at.active
                key = measure, arrival, sequence, entry
                better = at.key is None or key < at.key
                if better:
                    at.key = key
                    at.update_parent()
            at = at.parent

    def refresh(self) -> bool:
        """Recomputes the key. If it or the state changed, reports it to the parent and returns True."""
        key = self._best() if self.waiting else None
        if key == self.key and (self.active > 0) == self.hot:
            return False
        self.key = key
        self.update_parent()
        return True

    def update_parent(self) -> None:
        """Puts this node into its parent's heap for its state. Its older items become stale."""
        self.hot = self.active > 0
        parent, key = self.parent, self.key
        if parent is None:
            return
        if key is None:
            self.stamp = 0
            return
        self.stamp = parent.stamps = parent.stamps + 1
        heap = parent.warm if self.hot else parent.cold
        heappush(heap, (key[0], key[1], key[2], self.stamp, self))
        if len(heap) > _SLACK + 2 * len(parent.children):
            parent.compact(heap)

    def compact(self, heap: list[_Ranked]) -> None:
        heap[:] = [item for item in heap if item[4].stamp == item[3] and item[4].parent is self]
        heapify(heap)

    def _best(self) -> Key | None:
        """Returns the best key below a node that has waiting descendants."""
        best: Key | None = None
        depth = self.end if self.active else 0
        if self.here_waiting:
            best = (self.end - depth, *self._oldest_here())
        if self.cold and (cold := self._top(self.cold)) is not None:
            ranked = (cold[0] - depth, cold[1], cold[2], cold[3])
            if best is None or ranked < best:
                best = ranked
        if self.warm and self.active and (warm := self._top(self.warm)) is not None and (best is None or warm < best):
            best = warm
        return best

    def _oldest_here(self) -> Arrival:
        heap = self.here
        while heap[0][2].stage is not Stage.WAITING:
            heappop(heap)
        if len(heap) > _SLACK + 2 * self.here_waiting:
            heap[:] = [item for item in heap if item[2].stage is Stage.WAITING]
            heapify(heap)
        return heap[0]

    def _top(self, heap: list[_Ranked]) -> Key | None:
        while heap:
            item = heap[0]
            child = item[4]
            if child.stamp == item[3] and child.parent is self:
                return child.key
            heappop(heap)
        return None
