"""FEATHER's queue: the Chunked Hash Tree names the candidate, a stop policy says ADD or STOP (FEATHER §4.3, Alg. 7)."""

from __future__ import annotations

from plumage.batching.base import MAX_WAIT
from plumage.batching.interface import BatchState, Candidate, StopPolicy
from plumage.batching.stopping import Question, StoppingQueue
from plumage.batching.tree import CandidateOrder, ChunkedHashTree

__all__ = ["Feather"]


class Feather(StoppingQueue):
    """Chunked Hash Tree × stop policy."""

    def __init__(
        self,
        policy: StopPolicy,
        *,
        order: CandidateOrder = CandidateOrder.TIP_LOSS,
        max_wait: float = MAX_WAIT,
    ) -> None:
        super().__init__(policy, max_wait=max_wait)
        self.tree = ChunkedHashTree(order)

    def _question(self) -> Question:
        best = self.tree.find_best()
        assert best is not None
        kin = self.tree.kin(best.request_id)
        state = BatchState(
            batch=self.active,
            loss=best.loss,
            depth=best.depth_before,
            peers=best.peers,
            kin=kin.requests,
            forgone=max(0, kin.levels - best.depth_after),
        )
        return Question(best.request_id, state)

    def _joined(self, candidate: Candidate) -> None:
        super()._joined(candidate)
        self.tree.insert(candidate)

    def _left(self, candidate: Candidate) -> None:
        super()._left(candidate)
        self.tree.remove(candidate.request_id)

    def _started(self, candidate: Candidate) -> None:
        super()._started(candidate)
        if candidate.request_id not in self.tree:
            self.tree.insert(candidate)
        before = self.tree.tip_depth
        self.tree.add(candidate.request_id)
        self.tip_loss += max(0, before - self.tree.tip_depth)  # the first of a batch makes the tip

    def _ended(self, candidate: Candidate) -> None:
        super()._ended(candidate)
        self.tree.finish(candidate.request_id)
