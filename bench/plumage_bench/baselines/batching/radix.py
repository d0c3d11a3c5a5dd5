"""A plain radix tree with the same stop policy, a baseline of the Chunked Hash Tree (FEATHER §5.4.1).

It has one node for each level, without compression and without stored best descendants. To find a candidate it follows
the batch's path down, and searches the deepest subtree with waiting requests for the oldest. The loss of shared levels
is as small as with the Chunked Hash Tree, at another cost. Of candidates with equal loss it does not know which has the
fewest misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.batching.base import MAX_WAIT
from plumage.batching.factory import make_stop_policy
from plumage.batching.interface import BatchState, Candidate, Level, RequestId, StopPolicy
from plumage.batching.stopping import Question, StoppingQueue
from plumage.randomness import Randomness

__all__ = ["Radix", "RadixQueue"]


class _Level:
    """One level of one prefix."""

    __slots__ = ("active", "children", "here", "waiting")

    def __init__(self) -> None:
        self.children: dict[Level, _Level] = {}
        self.here: dict[RequestId, Candidate] = {}
        self.waiting = 0
        self.active = 0


class Radix(StoppingQueue):
    """Uncompressed prefix tree × stop policy."""

    def __init__(self, policy: StopPolicy, *, max_wait: float = MAX_WAIT) -> None:
        super().__init__(policy, max_wait=max_wait)
        self._root = _Level()

    def _question(self) -> Question:
        tip = self._tip()
        depth = max(depth for depth, level in enumerate(tip) if level.waiting)
        best = self._oldest_below(tip[depth])
        siblings, sibling_depth = self._siblings(best)
        state = BatchState(
            batch=self.active,
            loss=len(tip) - 1 - depth,
            depth=len(tip) - 1,
            peers=tip[depth].waiting - 1 if depth else 0,
            siblings=siblings,
            sibling_gain=max(0, sibling_depth - depth),
        )
        return best.request_id, state

    def _tip(self) -> list[_Level]:
        """The levels that the whole batch shares, root first."""
        path = [self._root]
        while self.active:
            below = [child for child in path[-1].children.values() if child.active == self.active]
            if not below:
                break
            path.append(below[0])
        return path

    def _siblings(self, candidate: Candidate) -> tuple[int, int]:
        """The other waiting requests that share the most with this one, and the shared levels."""
        level, found = self._root, (0, 0)
        for depth, key in enumerate(candidate.vector, 1):
            level = level.children[key]
            if level.waiting < 2:
                break
            found = level.waiting - 1, depth
        return found

    def _oldest_below(self, level: _Level) -> Candidate:
        oldest: Candidate | None = None
        levels = [level]
        while levels:
            at = levels.pop()
            levels.extend(child for child in at.children.values() if child.waiting)
            for candidate in at.here.values():
                if oldest is None or candidate.arrival < oldest.arrival:
                    oldest = candidate
        assert oldest is not None
        return oldest

    def _joined(self, candidate: Candidate) -> None:
        super()._joined(candidate)
        self._walk(candidate, waiting=1).here[candidate.request_id] = candidate

    def _left(self, candidate: Candidate) -> None:
        super()._left(candidate)
        del self._walk(candidate, waiting=-1).here[candidate.request_id]
        self._trim(candidate)

    def _started(self, candidate: Candidate) -> None:
        super()._started(candidate)
        level = self._walk(candidate, active=1)
        if level.here.pop(candidate.request_id, None) is not None:
            self._walk(candidate, waiting=-1)

    def _ended(self, candidate: Candidate) -> None:
        super()._ended(candidate)
        self._walk(candidate, active=-1)
        self._trim(candidate)

    def _walk(self, candidate: Candidate, waiting: int = 0, active: int = 0) -> _Level:
        level = self._root
        level.waiting += waiting
        level.active += active
        for key in candidate.vector:
            level = level.children.setdefault(key, _Level())
            level.waiting += waiting
            level.active += active
        return level

    def _trim(self, candidate: Candidate) -> None:
        level = self._root
        for key in candidate.vector:
            child = level.children.get(key)
            if child is None:
                return
            if not child.waiting and not child.active:
                del level.children[key]
                return
            level = child


class RadixQueue(Radix):
    """The queue for settings. stop: a stop policy's name. stop_options: of that policy."""

    def __init__(
        self,
        *,
        rng: Randomness,
        stop: str = "Heuristic",
        stop_options: Mapping[str, Any] | None = None,
        max_wait: float = MAX_WAIT,
    ) -> None:
        super().__init__(make_stop_policy(stop, rng, stop_options or {}), max_wait=max_wait)
