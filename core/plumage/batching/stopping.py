"""A waiting queue whose batch is closed by a stop policy (FEATHER §4.3, Alg. 7).

Algorithm 7 resets B to the empty set, so its b would count new admissions only; §4.3.1 means the current batch, which
is what the policy gets here: running plus admitted.
"""

from __future__ import annotations

from abc import abstractmethod

from plumage.batching.base import MAX_WAIT, WaitingQueue
from plumage.batching.interface import BatchState, Candidate, Decision, RequestId, StepOutcome, StopPolicy

__all__ = ["Question", "StoppingQueue"]


Question = tuple[RequestId, BatchState]
"""What a stop policy is asked: shall this request join a batch in that state?"""


class StoppingQueue(WaitingQueue):
    """A decision holds until a request comes, goes or moves, or a step has run. stops: the policy's STOPs so far."""

    def __init__(self, policy: StopPolicy, *, max_wait: float = MAX_WAIT) -> None:
        super().__init__(max_wait=max_wait)
        self.policy = policy
        self.stops = 0
        self._finished = 0  # requests that ended since the last step
        self._decided: tuple[RequestId | None] | None = None

    def observe(self, outcome: StepOutcome) -> None:
        self._decided = None
        if outcome.finished != self._finished:
            seconds, decoded, prefilled, _, steps, shape = outcome
            outcome = StepOutcome(seconds, decoded, prefilled, self._finished, steps, shape)
        self.policy.observe(outcome)
        self._finished = 0

    @abstractmethod
    def _question(self) -> Question:
        """The best candidate, and the batch as it would find it. Something waits."""

    def _pick(self, now: float) -> RequestId | None:
        if self._decided is None:
            self._decided = (self._decide(),)
        return self._decided[0]

    def _decide(self) -> RequestId | None:
        request_id, state = self._question()
        if not state.batch or self.policy.decide(state) is Decision.ADD:
            return request_id
        self.stops += 1
        return None

    def _joined(self, candidate: Candidate) -> None:
        self._decided = None

    def _left(self, candidate: Candidate) -> None:
        self._decided = None

    def _started(self, candidate: Candidate) -> None:
        self._decided = None

    def _ended(self, candidate: Candidate) -> None:
        self._decided = None
        self._finished += 1
