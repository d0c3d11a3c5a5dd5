"""The duration and tokens of each vLLM step. They are the reward of the decisions that formed its batch (FEATHER §4.3),
and the time that the article's metrics count.

A step runs from its `schedule()`, or from the end of the step before if that was later, to its
`update_from_output()`. Under asynchronous scheduling the next `schedule()` precedes this step's end, so the time
between two of them is no measure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plumage.batching import StepOutcome

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.scheduler import SchedulerOutput

__all__ = ["StepTimes"]

_MAX_STEPS = 64  # steps in flight; vLLM has two, or as many as pipeline stages


class StepTimes:
    """`ended` returns each scheduled step's outcome, in the order of scheduling."""

    def __init__(self) -> None:
        self._begun: deque[tuple[SchedulerOutput, float]] = deque(maxlen=_MAX_STEPS)
        self._last_end = float("-inf")

    def begun(self, output: SchedulerOutput, now: float) -> None:
        self._begun.append((output, now))

    def ended(self, output: SchedulerOutput, now: float) -> StepOutcome | None:
        """None for a step that was not begun, or that had no tokens."""
        while self._begun:
            begun, at = self._begun.popleft()
            if begun is output:
                start, self._last_end = max(at, self._last_end), now
                return _outcome(output, now - start) if output.total_num_scheduled_tokens else None
        return None


def _outcome(output: SchedulerOutput, seconds: float) -> StepOutcome:
    """A request with one token decodes, or with one and its drafts. Counted in C, because it runs at every step; most
    steps only decode, and have as many tokens as requests."""
    scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    if len(scheduled) == output.total_num_scheduled_tokens and not drafts:
        return StepOutcome(seconds, len(scheduled))
    decodes, drafted = list(scheduled.values()).count(1), 0
    for request, tokens in drafts.items():
        decodes += scheduled[request] != 1
        drafted += len(tokens)
    return StepOutcome(seconds, decodes, output.total_num_scheduled_tokens - decodes - drafted)
