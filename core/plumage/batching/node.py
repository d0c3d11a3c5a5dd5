"""A node of the Chunked Hash Tree: a compressed run of chunk levels, with its best waiting descendant.

A node covers the levels (start, end] of `vector`. Hashes are cumulative, so two vectors that agree at level l agree
below it: one comparison at the end of the run shows whether all of it matches, and a binary search finds a divergence.

The best descendant's key is (measure, arrival, sequence, entry). Below an active node the measure is the levels missing
from the working set. Below an inactive one it is the length, from which the nearest active ancestor subtracts its own
depth. So an inactive subtree's key does not depend on the batch, and a mutation touches one path only.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from plumage.batching.interface import Level, RequestId, Vector

__all__ = ["WAITING", "Entry", "Key", "Node", "Stage"]


class Stage(Enum):
    WAITING = "waiting"
    ACTIVE = "active"
    GONE = "gone"


WAITING: Final = Stage.WAITING
"""Read several times a request. An enumeration's member is looked up seven times as slowly in Python 3.11."""


class Entry:
    """A request in the tree; `node` ends where its vector ends."""

    __slots__ = ("arrival", "node", "request_id", "sequence", "stage")

    def __init__(self, request_id: RequestId, arrival: float, sequence: int, node: Node) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.sequence = sequence
        self.stage = WAITING
        self.node = node


Key = tuple[int, float, int, Entry]
"""(measure, arrival, sequence, entry). Sequences are unique, so a comparison never reaches the entry."""

_SLACK = 16  # stale heap items tolerated beyond the live ones before a heap is rebuilt
_CHILDLESS: Final[dict[Level, Node]] = {}  # of all nodes without children; never written


class Node:
    """One compressed run. Counts include the whole subtree; `here_*` only requests that end exactly here.

    Most nodes end one request and have no children. They have few objects, because with tens of thousands of waiting
    requests the collector of cycles would take more time than the tree. So heaps contain the keys themselves, and are
    None until they have one.
    """

    __slots__ = (
        "active",
        "children",
        "cold",
        "end",
        "first",
        "here_active",
        "here_waiting",
        "hot",
        "key",
        "others",
        "parent",
        "start",
        "vector",
        "waiting",
        "warm",
    )  # fmt: skip

    def __init__(self, vector: Vector, start: int, end: int, parent: Node | None) -> None:
        self.vector, self.start, self.end, self.parent = vector, start, end, parent
        self.waiting = self.active = self.here_waiting = self.here_active = 0
        self.children = _CHILDLESS
        self.first: Key | None = None  # the oldest that ends here, by its length; it may have gone since
        self.others: list[Key] | None = None  # a heap of the others
        self.cold: list[Key] | None = None  # a heap of the keys of inactive children
        self.warm: list[Key] | None = None  # a heap of the keys of active children
        self.key: Key | None = None
        self.hot = False  # was active when the parent last got the key

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
        if self.children is _CHILDLESS:
            self.children = {}
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
        parent = self.parent
        assert parent is not None
        del parent.children[self.vector[self.start]]
        return parent

    def dissolve(self) -> Node:
        """Joins this node with its only child, which takes its place. Returns the parent."""
        parent = self.above
        (child,) = self.children.values()
        child.start, child.parent = self.start, parent
        parent.adopt(child)
        child.update_parent()
        return parent

    # -- best descendant ---------------------------------------------------------------------------------------------

    def offer(self, entry: Entry) -> None:
        """Adds a new request that ends here. The nodes above count it, and take its key while it is their best.

        As long as none leaves, only a better descendant replaces the best one.
        """
        arrival, sequence, first = entry.arrival, entry.sequence, self.first
        key = self.end, arrival, sequence, entry
        self.here_waiting += 1
        if first is None:
            self.first = key
        else:
            self.first, later = (key, first) if key < first else (first, key)
            if self.others is None:
                self.others = []
            heappush(self.others, later)
        active, better = self.active, True
        if active:
            key = 0, arrival, sequence, entry
        at: Node | None = self
        while at is not None:
            at.waiting += 1
            if better:
                if at.active and not active:
                    active = at.active
                    key = key[0] - at.end, arrival, sequence, entry
                better = at.key is None or key < at.key
                if better:
                    at.key = key
                    at.update_parent()
            at = at.parent

    def forget_waiting(self) -> None:
        """A request that waited here does so no longer. Keys of the last one are dropped, or they would be in a cycle
        with the node."""
        self.here_waiting -= 1
        if not self.here_waiting:
            self.first = self.others = None

    def refresh(self) -> bool:
        """Recomputes the key. If it or the state changed, reports it to the parent and returns True."""
        key = self._best() if self.waiting else None
        if (self.active > 0) == self.hot and key == self.key:
            return False
        self.key = key
        self.update_parent()
        return True

    def update_parent(self) -> None:
        """Puts this node's key into its parent's heap for its state. Its older keys there become stale."""
        hot = self.hot = self.active > 0
        parent, key = self.parent, self.key
        if parent is None or key is None:
            return
        heap = parent.warm if hot else parent.cold
        if heap is not None:
            heappush(heap, key)
            if len(heap) > _SLACK + 2 * len(parent.children):
                parent.compact(heap, hot=hot)
        elif hot:
            parent.warm = [key]
        else:
            parent.cold = [key]

    def compact(self, heap: list[Key], *, hot: bool) -> None:
        heap[:] = [child.key for child in self.children.values() if child.key is not None and child.hot is hot]
        heapify(heap)

    def _best(self) -> Key | None:
        """Returns the best key below a node that has waiting descendants."""
        best: Key | None = None
        depth = self.end if self.active else 0
        if self.here_waiting:
            best = self._oldest_here()
            if depth:
                best = 0, best[1], best[2], best[3]
        if self.cold and (cold := self._top(self.cold, hot=False)) is not None:
            if depth:
                cold = cold[0] - depth, cold[1], cold[2], cold[3]
            if best is None or cold < best:
                best = cold
        if self.warm and self.active:
            warm = self._top(self.warm, hot=True)
            if warm is not None and (best is None or warm < best):
                best = warm
        return best

    def entries(self) -> Iterator[Entry]:
        """Requests that end here. Some may have left."""
        if self.first is not None:
            yield self.first[3]
        for key in self.others or ():
            yield key[3]

    def _oldest_here(self) -> Key:
        first, others = self.first, self.others
        assert first is not None
        while first[3].stage is not WAITING:
            assert others is not None  # it contains those that wait here
            first = self.first = heappop(others)
        if others and len(others) > _SLACK + 2 * self.here_waiting:
            others[:] = [key for key in others if key[3].stage is WAITING]
            heapify(others)
        return first

    def _top(self, heap: list[Key], *, hot: bool) -> Key | None:
        """The best key in a heap that is still the key of a child in this state. Levels lead to the child."""
        children, end = self.children, self.end
        while heap:
            key = heap[0]
            child = children.get(key[3].node.vector[end])
            if child is not None and child.key is key and child.hot is hot:
                return key
            heappop(heap)
        return None
