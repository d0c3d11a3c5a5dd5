"""FEATHER's queue: the Chunked Hash Tree names the candidate, a stop policy says ADD or STOP (FEATHER §4.3, Alg. 7)."""

from __future__ import annotations

from plumage.batching.base import MAX_WAIT
from plumage.batching.interface import BatchShape, BatchState, Candidate, StepOutcome, StopPolicy
from plumage.batching.stopping import Question, StoppingQueue
from plumage.batching.tree import ORDER, CandidateOrder, ChunkedHashTree

__all__ = ["Feather"]


class Feather(StoppingQueue):
    """Chunked Hash Tree × stop policy."""

    def __init__(
        self,
        policy: StopPolicy,
        *,
        order: CandidateOrder = ORDER,
        max_wait: float = MAX_WAIT,
    ) -> None:
        super().__init__(policy, max_wait=max_wait)
        self.tree = ChunkedHashTree(order)
        self._ran: BatchShape | None = None  # the batch of the step that runs, once a request of it has ended

    def observe(self, outcome: StepOutcome) -> None:
        shape, self._ran = self._ran or self.tree.shape, None
        super().observe(outcome._replace(shape=shape))

    def _question(self) -> Question:
        best = self.tree.find_best()
        assert best is not None
        request_id, before, after, peers, missing = best
        kin, levels = self.tree.kin(request_id)
        forgone = levels - after if levels > after else 0
        tree, loss = self.tree, before - after
        return request_id, BatchState(
            len(self._active), loss, before, peers, kin, forgone, tree.levels(request_id), missing, tree.shape
        )

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
        if self._ran is None:
            self._ran = self.tree.shape
        self.tree.finish(candidate.request_id)
