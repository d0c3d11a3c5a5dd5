"""The Chunked Hash Tree: which waiting request fits the running batch best (FEATHER §4.2, Algorithms 3–7).

The paper keeps a reverse index and a heap of missing counts. ADD and FINISH cost O(C·W_h·log W) there; W_h is the
number of waiting requests that share a chunk. But the working set (hashes of the active requests) is closed under
ancestors. So the question is one about a trie: missing(r) = len(r) − depth of the deepest active node on r's path. Each
node keeps its waiting and active counts and its best waiting descendant; a mutation refreshes one path. Single-child
chains are compressed, so a path has as many nodes as the prompt has branchings. The number of chunks does not change
the cost, and that of waiting siblings only by the logarithm of a heap.

Errata of the paper's pseudo-code, each under test by name:

- Alg. 3 registers the request and drops the cached best.
- Alg. 4 line 7 means *active*.
- Alg. 5 counts the first active request's hashes too, and tests membership before it inserts.
- Alg. 6 cleans up on every path.
- b of Alg. 7 is the current batch. Peers exclude the candidate, and at depth 0 there are none.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from enum import Enum
from heapq import nsmallest
from operator import attrgetter
from typing import NamedTuple

from plumage import defaults
from plumage.batching.interface import BatchShape, Candidate, RequestId, Vector
from plumage.batching.node import WAITING, Entry, Node, Stage
from plumage.errors import StateError

__all__ = ["ORDER", "Best", "CandidateOrder", "ChunkedHashTree", "Siblings"]

_ACTIVE, _GONE = Stage.ACTIVE, Stage.GONE
_SLACK = 64  # requests that have left, tolerated in the list of arrivals beyond the waiting ones
_ARRIVAL = attrgetter("arrival", "sequence")


class CandidateOrder(Enum):
    """The order of candidates. PAPER orders by (missing, arrival).

    Ours orders by (loss of tip, levels shared with the last admission, missing, arrival):

    - The loss is the paper's optimum for prompts of equal length (A.9 assumes them). It is safe for unequal ones too,
      where least-missing picks a short stranger over a long sibling.
    - The shared levels bring a mixed batch, which has no tip to lose, back to one group. All its groups miss equally
      little, and by arrival they would stay mixed.
    - What the last admission has does not count as missing after its end: the cache has it still. An empty batch goes
      on with those that share most with it. The oldest would leave the rest of a group behind until its prefix is
      evicted (decision 0339).
    """

    TIP_LOSS = "TipLoss"
    PAPER = "Paper"


ORDER = CandidateOrder(defaults.CANDIDATE_ORDER)
"""The one that a manifest has unless it says otherwise."""


class Best(NamedTuple):
    """The answer of FINDBEST.

    depth_before, depth_after: levels of the shared prefix's tip before and after admission.
    peers: other waiting requests at the new depth.
    missing: the candidate's levels that no active request has.
    """

    request_id: RequestId
    depth_before: int
    depth_after: int
    peers: int
    missing: int

    @property
    def loss(self) -> int:
        """Levels the tip would lose."""
        return self.depth_before - self.depth_after


class Siblings(NamedTuple):
    """The other waiting requests that share most with one, and the levels they share."""

    requests: int
    levels: int


class ChunkedHashTree:
    """Waiting and active requests by their hash vectors. `visits` counts nodes touched, for the cost's proof."""

    def __init__(self, order: CandidateOrder = ORDER) -> None:
        self.order = order
        self.waiting = 0
        self.active = 0
        self.visits = 0
        self._levels = self._distinct = 0  # of the active requests, see `BatchShape`
        self._root = Node((), 0, 0, None)
        self._tip: Node | None = None
        self._entries: dict[RequestId, Entry] = {}
        self._running: OrderedDict[RequestId, Entry] = OrderedDict()  # those active; the first in O(1)
        self._arrivals: list[Entry] = []  # in order; those before `_oldest` and others have left
        self._oldest = 0
        self._sequence = 0
        self._strangers = 0
        self._best: Best | None = None
        self._last: Entry | None = None  # the last admission, which may have ended
        self._due: Node | None = None  # keys from here upwards are refreshed before they are read

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._entries

    # -- mutations ---------------------------------------------------------------------------------------------------

    def insert(self, candidate: Candidate) -> None:
        """INSERT (Alg. 3): the request waits."""
        if candidate.request_id in self._entries:
            raise StateError(f"request {candidate.request_id!r} is in the tree already")
        self._refresh_due()
        self._sequence += 1
        node = self._place(candidate.vector or self._stranger())
        entry = Entry(candidate.request_id, candidate.arrival, self._sequence, node)
        self._entries[candidate.request_id] = entry
        self._note_arrival(entry)
        node.offer(entry)
        self.waiting += 1
        self._best = None

    def add(self, request_id: RequestId) -> int:
        """ADDTOBATCH (Alg. 5): a waiting request is active from now on; the tip can only shorten. Returns the levels
        that it lost; the first request of a batch makes it, which loses none."""
        entry = self._entries.get(request_id)
        if entry is None or entry.stage is not WAITING:
            raise _unexpected(request_id, entry, WAITING)
        node = entry.node
        entry.stage = _ACTIVE
        node.forget_waiting()
        node.here_active += 1
        self._running[request_id] = entry
        self._last = entry
        self._levels += node.end
        self._count_added(node)
        self.waiting -= 1
        self.active += 1
        before = self._tip or node
        tip = self._tip = self._shared_by_all(before)
        self._refresh_admitted(node)
        return before.end - tip.end

    def finish(self, request_id: RequestId) -> None:
        """FINISH (Alg. 6): an active request ended; the tip can only lengthen."""
        entry = self._entries.get(request_id)
        if entry is None or entry.stage is not _ACTIVE:
            raise _unexpected(request_id, entry, _ACTIVE)
        del self._entries[request_id], self._running[request_id]
        entry.stage = _GONE
        node = entry.node
        node.here_active -= 1
        self._levels -= node.end
        self._refresh_due()
        keys_change = self._count_finished(node)
        self.active -= 1
        self._lengthen()
        lowest = self._prune(node)
        if keys_change:
            self._refresh_upwards(lowest)
        else:
            self._best = None

    def remove(self, request_id: RequestId) -> None:
        """Removes a waiting request; one that is absent is tolerated."""
        entry = self._entries.get(request_id)
        if entry is None:
            return
        if entry.stage is not WAITING:
            raise StateError(f"request {request_id!r} is active: finish it, do not remove it")
        del self._entries[request_id]
        entry.stage = _GONE
        node = entry.node
        self._refresh_due()
        node.forget_waiting()
        self._count_removed(node)
        self.waiting -= 1
        self._refresh_upwards(self._prune(node))

    # -- questions ---------------------------------------------------------------------------------------------------

    def find_best(self) -> Best | None:
        """FINDBEST (Alg. 4): the waiting request that fits the batch best; None when none waits. Cached until the next
        mutation (§4.2.7). With an empty batch it is one that shares most with the last admission, or the oldest where
        none does (ours), or the one of the fewest chunks (the paper's)."""
        if self._best is None and self.waiting:
            self._best = self._find()
        return self._best

    def oldest(self) -> tuple[RequestId, float] | None:
        """The waiting request that arrived first, with its arrival."""
        for at in range(self._oldest, len(self._arrivals)):
            entry = self._arrivals[at]
            if entry.stage is WAITING:
                self._oldest = at
                return entry.request_id, entry.arrival
        self._oldest = len(self._arrivals)
        return None

    @property
    def last(self) -> Vector:
        """Of the request that was admitted last, also after its end; () before the first."""
        if self._last is None:
            return ()
        node = self._last.node
        return node.vector if len(node.vector) == node.end else node.vector[: node.end]

    @property
    def tip_depth(self) -> int:
        """Levels shared by all active requests; 0 when none is active."""
        return self._tip.end if self._tip is not None else 0

    @property
    def shape(self) -> BatchShape:
        """Of the active requests."""
        return BatchShape(self.active, self._levels, self._distinct, self.tip_depth)

    def levels(self, request_id: RequestId) -> int:
        """Returns the levels of a request's prompt."""
        return self._entries[request_id].node.end

    def shares(self, request_id: RequestId) -> int:
        """Levels of a request that some active request has."""
        node: Node | None = self._entries[request_id].node
        while node is not None and not node.active:
            node = node.parent
        return node.end if node is not None else 0

    def siblings(self, request_id: RequestId) -> Siblings:
        """Returns the siblings of a waiting request. O(branchings of its prompt)."""
        node: Node | None = self._entries[request_id].node
        while node is not None and node.waiting < 2:
            node = node.parent
        return Siblings(node.waiting - 1, node.end) if node is not None and node.end else Siblings(0, 0)

    def nearest(self, vector: Vector) -> RequestId | None:
        """The waiting request that shares most with a vector; None if none shares a level. O(branchings)."""
        self._refresh_due()
        node, length = self._root, len(vector)
        while node.end < length and (node is self._root or node.vector[node.end - 1] == vector[node.end - 1]):
            child = node.children.get(vector[node.end])
            if child is None or not child.waiting:
                break
            node = child
        return node.key[3].request_id if node is not self._root and node.key is not None else None

    def oldest_siblings(self, request_id: RequestId, most: int) -> list[RequestId]:
        """The oldest waiting requests, at most `most`, of those that share most with a waiting one, itself among them;
        [] if it shares with none. O(waiting requests with the shared levels)."""
        node: Node | None = self._entries[request_id].node
        while node is not None and node.waiting < 2:
            node = node.parent
        if node is None or not node.end:
            return []
        found: list[Entry] = []
        below = [node]
        while below:
            one = below.pop()
            if one.waiting:
                found += [entry for entry in one.entries() if entry.stage is WAITING]
                below += one.children.values()
        self.visits += len(found)
        return [entry.request_id for entry in nsmallest(most, found, key=_ARRIVAL)]

    # -- finding -----------------------------------------------------------------------------------------------------

    def _find(self) -> Best:
        tip = self._tip
        if tip is None:
            self._refresh_due()
            return self._first()
        ours = self.order is CandidateOrder.TIP_LOSS
        holder, visits = self._youngest() if ours else self._root, 1
        while not holder.waiting:
            visits += 1
            assert holder.parent is not None
            holder = holder.parent
        self.visits += visits
        if self._due is not None and holder.end <= self._due.end:
            self._refresh_due()
        missing, entry = self._least_missing(holder)
        shared = (holder if holder.end < tip.end else tip) if ours else self._meet(entry.node, tip)
        return Best(entry.request_id, tip.end, shared.end, shared.waiting - 1 if shared.end else 0, missing)

    def _least_missing(self, holder: Node) -> tuple[int, Entry]:
        """The best below an active node, with its levels that no active request has. In our order, those that the last
        admission has do not count for the choice."""
        best = holder.key
        assert best is not None
        assert self._last is not None  # it made the batch
        missing, _, _, entry = best
        if self._last.stage is _ACTIVE or self.order is CandidateOrder.PAPER:
            return missing, entry
        last, node, active = self.last, holder, holder.end
        if active and last[active - 1 : active] != holder.vector[active - 1 : active]:
            return missing, entry
        while node.end < len(last):
            child = node.children.get(last[node.end])
            if child is None or child.key is None:
                break
            self.visits += 1
            shared = child.common(last)
            if child.active:
                active = child.end
            elif (key := (child.key[0] - shared, *child.key[1:])) < best:
                best, missing, entry = key, child.key[0] - active, key[3]
            if shared < child.end:
                break
            node = child
        return missing, entry

    def _youngest(self) -> Node:
        """Where the request ends that was admitted last, of those active."""
        return self._running[next(reversed(self._running))].node

    def _first(self) -> Best:
        """The batch is empty: there is no tip to lose."""
        if self.order is CandidateOrder.PAPER:
            assert self._root.key is not None
            entry = self._root.key[3]
        elif (near := self.nearest(self.last)) is not None:
            entry = self._entries[near]
        else:
            oldest = self.oldest()
            assert oldest is not None
            entry = self._entries[oldest[0]]
        node, depth = entry.node, entry.node.end
        return Best(entry.request_id, depth, depth, node.waiting - 1, depth)

    def _meet(self, one: Node, other: Node) -> Node:
        """The deepest common ancestor."""
        while one is not other:
            self.visits += 1
            if one.end >= other.end:
                one = one.above
            else:
                other = other.above
        return one

    # -- placing -----------------------------------------------------------------------------------------------------

    def _stranger(self) -> Vector:
        """A vector of one level that nobody shares: an empty one must not look like a perfect match."""
        self._strangers += 1
        return (-self._strangers,)

    def _place(self, vector: Vector) -> Node:
        """The node that ends where `vector` does, made (and a chain split) where needed."""
        node, depth, length = self._root, 0, len(vector)
        while depth < length:
            self.visits += 1
            child = node.children.get(vector[depth])
            if child is None:
                return node.adopt(Node(vector, depth, length, node))
            depth = child.common(vector)
            node = child if depth == child.end else child.split(depth)
        return node

    # -- keeping counts, tip and keys --------------------------------------------------------------------------------

    def _count_added(self, node: Node) -> None:
        """A request that ends at `node` waited and is active."""
        at: Node | None = node
        while at is not None:
            at.waiting -= 1
            if not at.active:  # the first active request of this run
                self._distinct += at.end - at.start
            at.active += 1
            self.visits += 1
            at = at.parent

    def _count_finished(self, node: Node) -> bool:
        """An active request that ends at `node` ended. Returns whether a node with waiting requests has no active one
        left: only that changes keys."""
        at: Node | None = node
        changed = False
        while at is not None:
            at.active -= 1
            if not at.active:  # the last active request of this run
                self._distinct -= at.end - at.start
                changed = changed or at.waiting > 0
            self.visits += 1
            at = at.parent
        return changed

    def _count_removed(self, node: Node) -> None:
        """A waiting request that ends at `node` left."""
        at: Node | None = node
        while at is not None:
            at.waiting -= 1
            self.visits += 1
            at = at.parent

    def _lengthen(self) -> None:
        if not self.active:
            self._tip = None
            return
        if self._tip is not None and self._tip.here_active:
            return  # nobody shares more than the whole prompt of one of them
        self._tip = self._shared_by_all(next(iter(self._running.values())).node)

    def _shared_by_all(self, below: Node) -> Node:
        """The deepest node that all active requests share; it is `below`, which some of them have, or above it."""
        node, visits = below, 0
        while node.active != self.active:
            visits += 1
            assert node.parent is not None
            node = node.parent
        self.visits += visits
        return node

    def _prune(self, node: Node) -> Node:
        """Drops a node that no request uses, and joins a chain that has one child left. Returns the lowest remaining
        node whose key may have changed."""
        if node.parent is None or node.here_waiting or node.here_active:
            return node
        if not node.children:
            node = node.leave()
        if node.parent is not None and len(node.children) == 1 and not (node.here_waiting or node.here_active):
            return node.dissolve()
        return node

    def _refresh_admitted(self, node: Node) -> None:
        """A request that ends here was admitted. Usually a sibling is next, and no key above their parent is read: it
        is refreshed once for many admissions."""
        self._best = None
        parent = node.parent
        if node.waiting or parent is None:
            self._refresh_due()
            self._refresh_upwards(node)
            return
        node.key, node.hot = None, True
        self.visits += 2
        if parent is self._due:
            return
        if parent.parent is not self._due:
            self._refresh_due()
        if parent.refresh():
            self._due = parent.parent

    def _refresh_due(self) -> None:
        if self._due is not None:
            node, self._due = self._due, None
            self._refresh_upwards(node)

    def _refresh_upwards(self, node: Node) -> None:
        """Refresh the best descendants from `node` upwards until nothing changes any more."""
        self._best = None
        at: Node | None = node
        visits = 1
        while at is not None and at.refresh():
            visits += 1
            at = at.parent
        self.visits += visits

    def _note_arrival(self, entry: Entry) -> None:
        """Nearly all requests come in the order of their arrival."""
        arrivals = self._arrivals
        if not arrivals or entry.arrival >= arrivals[-1].arrival:
            arrivals.append(entry)
        else:
            insort(arrivals, entry, self._oldest, key=_ARRIVAL)
        if len(arrivals) > _SLACK + 2 * self.waiting:
            arrivals[:] = [one for one in arrivals if one.stage is WAITING]
            self._oldest = 0


def _unexpected(request_id: RequestId, entry: Entry | None, stage: Stage) -> StateError:
    have = "unknown" if entry is None else entry.stage.value
    return StateError(f"request {request_id!r} must be {stage.value} here, but is {have}")
