"""SGLang's two prefix-aware orders: the waiting queue is sorted once a step, and then served in that order.

LPM, longest prefix match: most cached prefix first; above `fcfs_above` waiting requests it uses FCFS, because sorting
would take too long (SGLang's own limit is 128; None: never).
DFS-W, depth-first by weight: at every node of the prefix tree the branch with more waiting requests first.
Neither decides to STOP. FEATHER §3.4 measures what their sorting costs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable

from plumage.batching.base import MAX_WAIT, WaitingQueue
from plumage.batching.interface import Candidate, Level, RequestId, StepOutcome
from plumage_bench.baselines.batching.prefixes import PrefixRecord

__all__ = ["DfsWeight", "Lpm"]


class SortedQueue(WaitingQueue):
    """Sorts at the first choice of a step. Requests that arrive later in the step wait for the next sort."""

    def __init__(self, *, max_wait: float = MAX_WAIT) -> None:
        super().__init__(max_wait=max_wait)
        self._order: deque[RequestId] = deque()

    def observe(self, outcome: StepOutcome) -> None:
        self._order.clear()

    def _pick(self, now: float) -> RequestId | None:
        while self._order and self._order[0] not in self._waiting:
            self._order.popleft()
        if not self._order:
            self._order.extend(c.request_id for c in self._sorted(list(self._waiting.values())))
        return self._order[0]

    @abstractmethod
    def _sorted(self, waiting: list[Candidate]) -> Iterable[Candidate]:
        """The waiting requests in the order of this policy. They are passed in order of arrival."""


class Lpm(SortedQueue):
    """Longest prefix match first."""

    def __init__(self, *, fcfs_above: int | None = 128, max_wait: float = MAX_WAIT) -> None:
        super().__init__(max_wait=max_wait)
        self._fcfs_above = fcfs_above
        self._record = PrefixRecord()

    def _sorted(self, waiting: list[Candidate]) -> Iterable[Candidate]:
        if self._fcfs_above is not None and len(waiting) > self._fcfs_above:
            return waiting
        return sorted(waiting, key=lambda candidate: -self._record.depth(candidate.vector))

    def _started(self, candidate: Candidate) -> None:
        self._record.note(candidate.vector)


class DfsWeight(SortedQueue):
    """Depth first through the prefix tree, the branch with more waiting requests first."""

    def _sorted(self, waiting: list[Candidate]) -> Iterable[Candidate]:
        weights: Counter[Level] = Counter()
        for candidate in waiting:
            weights.update(candidate.vector)
        # A sort by (−weight, hash) of each level gives that order: keys that are equal up to a level are in the same
        # branch.
        return sorted(waiting, key=lambda candidate: [(-weights[level], level) for level in candidate.vector])
