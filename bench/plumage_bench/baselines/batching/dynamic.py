"""Dynamic batching: FCFS with a batch limit that follows the latency of a step (FEATHER §5.1.3's baseline [12]).

Additive increase, multiplicative decrease: steps below the target raise the limit by one, a step above it cuts the
limit. It knows only the duration of a step, not its requests.
"""

from __future__ import annotations

from plumage.batching.base import MAX_WAIT, WaitingQueue
from plumage.batching.bounds import within
from plumage.batching.interface import RequestId, StepOutcome

__all__ = ["DynamicBatching"]


class DynamicBatching(WaitingQueue):
    """`target`: seconds for a decode step. `smallest`, `largest`: bounds of the limit."""

    def __init__(
        self,
        *,
        target: float = 0.05,
        smallest: int = 1,
        largest: int = 1024,
        cut: float = 0.8,
        max_wait: float = MAX_WAIT,
    ) -> None:
        super().__init__(max_wait=max_wait)
        self._target, self._cut = within("target", target, 1e-9), within("cut", cut, 0, 1)
        self._smallest = int(within("smallest", smallest, 1))
        self._largest = int(within("largest", largest, smallest))
        self.limit = min(max(smallest, 8), self._largest)

    def observe(self, outcome: StepOutcome) -> None:
        if outcome.prefill_tokens:
            return  # a slow prefill does not mean that the batch is too large
        if outcome.seconds / outcome.steps > self._target:
            self.limit = max(self._smallest, int(self.limit * self._cut))
        elif self.active >= self.limit:
            self.limit = min(self._largest, self.limit + 1)

    def _pick(self, now: float) -> RequestId | None:
        if self.active >= self.limit:
            return None
        return next(iter(self._waiting))
