"""FEATHER's queue: the Chunked Hash Tree names the candidate, a stop policy says ADD or STOP (FEATHER §4.3, Alg. 7).

The ageing bound is ours. In an overload all requests reach it. Admitting the oldest one each time would be first come,
first served, exactly when an order pays most. So the oldest one brings its group. Of those that share most with it,
the oldest follow, until the turn has eight batches. Then the next oldest request has its turn (decision 0311).

A change of groups in a batch that runs mixes both for the time of an answer. So a turn also goes on with those that
share less. The group in service when the first request becomes overdue has a turn too. Both hold only while the request
that would be next is overdue itself. So nobody is passed by a younger request but by those that follow an older one
(decision 0319).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from plumage.batching.base import MAX_WAIT
from plumage.batching.interface import BatchShape, BatchState, Candidate, RequestId, StepOutcome, StopPolicy
from plumage.batching.stopping import Question, StoppingQueue
from plumage.batching.tree import ORDER, CandidateOrder, ChunkedHashTree

__all__ = ["Feather"]

_TURN: Final = 8  # batches of admissions; with fewer, more of the batches are mixed (0311)


class Feather(StoppingQueue):
    """Chunked Hash Tree × stop policy. One with the attribute `reads_shape` gets the shape of the batch too. One with
    `adds_all` is not asked, so no question is made."""

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
        self._adds_all = bool(getattr(policy, "adds_all", False))
        self._turn: deque[Candidate] = deque()  # who follows the last overdue request, in order of arrival
        self._run = 0  # admissions of this turn, or since one that shared nothing with the one before
        self._peak = 0  # the largest batch of these
        self._largest = 1  # the largest batch so far
        self._ran: BatchShape | None = None  # the batch of the step that runs, once a request of it has ended

    def observe(self, outcome: StepOutcome) -> None:
        if self._reads_shape:
            outcome, self._ran = outcome._replace(shape=self._ran or self.tree.shape), None
        super().observe(outcome)

    def _question(self) -> Question:
        best = self.tree.find_best()
        assert best is not None
        request_id, before, after, peers, missing = best
        siblings, levels = self.tree.siblings(request_id)
        sibling_gain = levels - after if levels > after else 0
        state = BatchState(len(self._active), before - after, before, peers, siblings, sibling_gain)
        if self._reads_shape:
            state = state._replace(levels=self.tree.levels(request_id), missing=missing, shape=self.tree.shape)
        return request_id, state

    def _pick(self, now: float) -> RequestId | None:
        if self._turn:
            self._turn.clear()  # nobody is overdue
        return super()._pick(now)

    def _decide(self) -> RequestId | None:
        if self._adds_all and (best := self.tree.find_best()) is not None:
            return best.request_id
        return super()._decide()

    def _overdue(self, oldest: Candidate, now: float) -> RequestId:
        turn = self._turn
        if self._run < _TURN * max(1, self._peak):
            while turn:
                if self._waiting.get(turn[0].request_id) is turn[0]:
                    return turn[0].request_id
                turn.popleft()
            near = self.tree.nearest(self.tree.last)
            if near is not None and now - self._waiting[near].arrival >= self.max_wait:
                return near
        self._run, self._peak = 0, len(self._active)
        most = _TURN * self._largest
        siblings = [self._waiting[request_id] for request_id in self.tree.oldest_siblings(oldest.request_id, most)]
        turn.clear()
        turn.append(oldest)
        turn.extend(one for one in siblings if one is not oldest)
        return oldest.request_id

    def _joined(self, candidate: Candidate) -> None:
        self._decided = None
        self.tree.insert(candidate)

    def _left(self, candidate: Candidate) -> None:
        self._decided = None
        self.tree.remove(candidate.request_id)

    def _started(self, candidate: Candidate) -> None:
        self._decided = None
        tree, request_id, vector, last = self.tree, candidate.request_id, candidate.vector, self.tree.last
        if request_id not in tree:
            tree.insert(candidate)
        if not (vector and last and vector[0] == last[0]):
            self._run = self._peak = 0
        self._run += 1
        batch = len(self._active)
        if batch > self._peak:  # the batch of now may be small, as it has just ended
            self._peak = batch
            if batch > self._largest:
                self._largest = batch
        self.tip_loss += tree.add(request_id)

    def _ended(self, candidate: Candidate) -> None:
        self._decided = None
        self._finished += 1
        if self._reads_shape and self._ran is None:
            self._ran = self.tree.shape
        self.tree.finish(candidate.request_id)
