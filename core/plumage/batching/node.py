"""A node of the Chunked Hash Tree: a compressed run of chunk levels, with its best waiting descendant.

A node covers the levels (start, end] of `vector`. Hashes are cumulative, so two vectors that agree at level l agree
below it: one comparison at the end of the run tells whether all of it matches, and a binary search finds a divergence.

The best descendant's key is (measure, arrival, sequence, entry). Below an active node the measure is the levels missing
from the working set; below an inactive one it is the length, from which the nearest active ancestor subtracts its own
depth. So an inactive subtree's key does not depend on the batch, and a mutation touches one path only.
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush

from plumage.batching.interface import Level, RequestId, Vector

__all__ = ["Entry", "Key", "Node", "Stage"]


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


Key = tuple[int, float, int, Entry]
# (measure, arrival, sequence, stamp, child): stamps are unique, so a comparison never reaches the child.
_Ranked = tuple[int, float, int, int, "Node"]

_SLACK = 16  # stale heap items tolerated beyond the live ones before a heap is rebuilt


class Node:
    """One compressed run. Counts include the whole subtree; `here_*` only requests that end exactly here."""

    __slots__ = (
        "active",
        "active_children",
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
        self.active_children: set[Node] = set()
        self.here: list[tuple[float, int, Entry]] = []
        self.cold: list[_Ranked] = []  # inactive children, by (length, arrival) of their best
        self.warm: list[_Ranked] = []  # active children, by (missing, arrival) of their best
        self.key: Key | None = None
        self.hot = False  # was active when the key was last told to the parent
        self.stamp = 0  # the heap item of the parent's that speaks for this node
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
        if self.active:
            parent.active_children.discard(self)
            parent.active_children.add(upper)
            upper.active_children.add(self)
        self.start, self.parent = depth, upper
        upper.adopt(self)
        self.tell_parent()
        upper.refresh()
        return upper

    def leave(self) -> Node:
        """An empty leaf goes; returns the parent."""
        parent = self.above
        del parent.children[self.vector[self.start]]
        self.stamp = 0
        return parent

    def dissolve(self) -> Node:
        """Join with the only child, which takes this node's place; returns the parent."""
        parent = self.above
        (child,) = self.children.values()
        child.start, child.parent = self.start, parent
        parent.adopt(child)
        if child.active:
            parent.active_children.discard(self)
            parent.active_children.add(child)
        self.stamp = 0
        child.tell_parent()
        return parent

    # -- counts ------------------------------------------------------------------------------------------------------

    def change_active(self, by: int) -> None:
        self.active += by
        if self.parent is None:
            return
        if self.active == 0:
            self.parent.active_children.discard(self)
        elif self.active == by == 1:
            self.parent.active_children.add(self)

    def push_here(self, entry: Entry) -> None:
        self.here_waiting += 1
        heappush(self.here, (entry.arrival, entry.sequence, entry))

    # -- best descendant ---------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Recompute the key; tell the parent and return True if it, or being active, changed."""
        key, hot = self._best(), self.active > 0
        if key == self.key and hot == self.hot:
            return False
        self.key = key
        self.tell_parent()
        return True

    def tell_parent(self) -> None:
        """Rank this node in its parent's heap for its state; older items of it turn stale."""
        self.hot = self.active > 0
        parent = self.parent
        if parent is None:
            return
        if self.key is None:
            self.stamp = 0
            return
        parent.stamps += 1
        self.stamp = parent.stamps
        heap = parent.warm if self.hot else parent.cold
        heappush(heap, (*self.key[:3], self.stamp, self))
        if len(heap) > _SLACK + 2 * len(parent.children):
            parent.compact(heap)

    def compact(self, heap: list[_Ranked]) -> None:
        heap[:] = [item for item in heap if item[4].stamp == item[3] and item[4].parent is self]
        heapify(heap)

    def _best(self) -> Key | None:
        if not self.waiting:
            return None
        best: Key | None = None
        depth = self.end
        if self.here_waiting:
            arrival, sequence, entry = self._oldest_here()
            best = (0 if self.active else depth, arrival, sequence, entry)
        cold = self._top(self.cold)
        if cold is not None:
            measure, arrival, sequence, entry = cold
            ranked = (measure - depth if self.active else measure, arrival, sequence, entry)
            best = ranked if best is None or ranked < best else best
        if self.active:
            warm = self._top(self.warm)
            best = warm if best is None or (warm is not None and warm < best) else best
        return best

    def _oldest_here(self) -> tuple[float, int, Entry]:
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
