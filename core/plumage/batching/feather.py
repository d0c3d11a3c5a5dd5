"""FEATHER's queue: the Chunked Hash Tree names the candidate, a stop policy says ADD or STOP (FEATHER §4.3, Alg. 7).

The ageing bound is ours. Where the load is so high that all requests reach it, admitting the oldest request each time
would be first come, first served. So the oldest one brings its group: those that share most with it follow, for two
batches at most, before the next oldest has its turn (decision 0311).
"""

from __future__ import annotations

from typing import Final

from plumage.batching.base import MAX_WAIT
from plumage.batching.interface import BatchShape, BatchState, Candidate, RequestId, StepOutcome, StopPolicy, Vector
from plumage.batching.stopping import Question, StoppingQueue
from plumage.batching.tree import ORDER, CandidateOrder, ChunkedHashTree

__all__ = ["Feather"]

_TURN: Final = 2  # batches; with one, a batch is mixed all the time, and more than two hardly gain


class _Turn:
    """The turn of a group whose oldest request is overdue.

    vector, levels: the group shares these levels of the leader's. left: admissions that the turn still has.
    """

    __slots__ = ("leader", "left", "levels", "vector")

    def __init__(self, leader: RequestId, vector: Vector, levels: int, left: int) -> None:
        self.leader, self.vector, self.levels, self.left = leader, vector, levels, left


class Feather(StoppingQueue):
    """Chunked Hash Tree × stop policy. One with the attribute `reads_shape` gets the shape of the batch too."""

    def __init__(
        self,
        policy: StopPolicy,
        *,
        order: CandidateOrder = ORDER,
        max_wait: float = MAX_WAIT,
    ) -> None:
        super().__init__(policy, max_wait=max_wait)
        self.tree = ChunkedHashTree(order)
        self._reads_shape = bool(getattr(policy, "reads_shape", False))
        self._turn: _Turn | None = None
        self._ran: BatchShape | None = None  # the batch of the step that runs, once a request of it has ended

    def observe(self, outcome: StepOutcome) -> None:
        if self._reads_shape:
            outcome, self._ran = outcome._replace(shape=self._ran or self.tree.shape), None
        super().observe(outcome)

    def _question(self) -> Question:
        best = self.tree.find_best()
        assert best is not None
        request_id, before, after, peers, missing = best
        kin, levels = self.tree.kin(request_id)
        forgone = levels - after if levels > after else 0
        state = BatchState(len(self._active), before - after, before, peers, kin, forgone)
        if self._reads_shape:
            state = state._replace(levels=self.tree.levels(request_id), missing=missing, shape=self.tree.shape)
        return request_id, state

    def _pick(self, now: float) -> RequestId | None:
        self._turn = None  # nobody is overdue
        return super()._pick(now)

    def _overdue(self, oldest: Candidate) -> RequestId:
        turn = self._turn
        if turn is not None and turn.left > 0:
            if turn.leader in self._waiting:
                return turn.leader
            if (follower := self.tree.best_below(turn.vector, turn.levels)) is not None:
                return follower
        levels = self.tree.kin(oldest.request_id).levels
        self._turn = _Turn(oldest.request_id, oldest.vector, levels, _TURN * max(1, len(self._active)))
        return oldest.request_id

    def _joined(self, candidate: Candidate) -> None:
        super()._joined(candidate)
        self.tree.insert(candidate)

    def _left(self, candidate: Candidate) -> None:
        super()._left(candidate)
        self.tree.remove(candidate.request_id)

    def _started(self, candidate: Candidate) -> None:
        super()._started(candidate)
        if self._turn is not None:
            self._turn.left -= 1
        tree, request_id = self.tree, candidate.request_id
        if request_id not in tree:
            tree.insert(candidate)
        self.tip_loss += tree.add(request_id)

    def _ended(self, candidate: Candidate) -> None:
        super()._ended(candidate)
        if self._reads_shape and self._ran is None:
            self._ran = self.tree.shape
        self.tree.finish(candidate.request_id)
