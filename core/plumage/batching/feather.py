"""FEATHER's queue: the Chunked Hash Tree names the candidate, a stop policy says ADD or STOP (FEATHER §4.3, Alg. 7)."""

from __future__ import annotations

from plumage.batching.base import MAX_WAIT
from plumage.batching.interface import BatchShape, BatchState, Candidate, StepOutcome, StopPolicy
from plumage.batching.stopping import Question, StoppingQueue
from plumage.batching.tree import ORDER, CandidateOrder, ChunkedHashTree

__all__ = ["Feather"]


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

    def _joined(self, candidate: Candidate) -> None:
        super()._joined(candidate)
        self.tree.insert(candidate)

    def _left(self, candidate: Candidate) -> None:
        super()._left(candidate)
        self.tree.remove(candidate.request_id)

    def _started(self, candidate: Candidate) -> None:
        super()._started(candidate)
        tree, request_id = self.tree, candidate.request_id
        if request_id not in tree:
            tree.insert(candidate)
        self.tip_loss += tree.add(request_id)

    def _ended(self, candidate: Candidate) -> None:
        super()._ended(candidate)
        if self._reads_shape and self._ran is None:
            self._ran = self.tree.shape
        self.tree.finish(candidate.request_id)
