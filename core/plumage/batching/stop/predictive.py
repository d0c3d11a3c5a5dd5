"""STOP where a fit of the step time predicts that waiting requests are served sooner after the batch has drained.

The bandit must try a STOP to learn what it is worth, and each trial costs throughput. This policy fits the time of a
step to what the step contained (`step_time.py`), and stops in two cases:

- The batch as it is decodes more tokens a second than with the candidate and its siblings. A batch that drains slows
  down, so this ends by itself (the marginal value theorem, Charnov 1976).
- The batch and the siblings are decoded sooner if the batch drains first. Of n running requests half of the tokens are
  left. After STOP the batch is half as large in the mean, and then the siblings have a batch of their own. After ADD
  all decode mixed for the time of an answer. Siblings that found no room then follow: on their own where the batch
  shared a prefix, and mixed where it shared nothing.

All times are linear in the features of a step, so each difference has a standard error. Where a gain is within its
error, the answer is ADD, the tree's order alone. A batch that is always full and mixed never shows what another batch
costs. Then STOP is tried for the time of an answer where it may pay. A trial is charged its predicted loss, and at
least 5 % of its time; the second twice as much, the third three times. All charges stay below 3 % of the time so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import ClassVar, Final, NamedTuple

from plumage.batching.interface import BatchShape, BatchState, Decision, StepOutcome
from plumage.batching.stop.step_time import StepTime
from plumage.batching.stop.table import Row

__all__ = ["Predictive"]

_MARGIN: Final = 0.02  # least relative gain in time for which it stops
_ERRORS: Final = 2.0  # standard errors that a gain must exceed
_SHARE: Final = 0.03  # of the time so far, that all charges for trials may be
_LEAST_LOSS: Final = 0.05  # relative loss that a trial is charged at least, since its prediction is uncertain
_FORGET: Final = 0.9999  # a step: factor on the largest batch, and on the tokens and requests that give a life

_Features = Sequence[float]


class _Gain(NamedTuple):
    """Time saved, as a part of `whole` seconds: the prediction, and the ends of its range."""

    mean: float
    least: float
    most: float
    whole: float


class Predictive:
    """A `StopPolicy`. It is determined by the outcomes of steps and draws nothing. step_time: what it has learned."""

    reads_shape: ClassVar = True

    def __init__(self) -> None:
        self.step_time = StepTime()
        self._largest = 0.0
        self._decoded = self._ended = 0.0
        self._seconds = self._cost = 0.0  # of all steps, and what trials were charged
        self._steps = self._until = 0.0  # steps so far, and the step at which a trial ends
        self._tried = 0

    def decide(self, state: BatchState) -> Decision:
        if not state.at_stake or state.shape is None:
            return Decision.ADD
        now, grown, drained, added = self._compared(state, state.shape)
        if self._gain(grown, now).least > _MARGIN:
            return Decision.STOP
        gain = self._gain(added, drained)
        if gain.least > _MARGIN:
            return Decision.STOP
        if gain.most > _MARGIN and self._may_try(gain):
            return Decision.STOP
        self._until = 0.0
        return Decision.ADD

    def observe(self, outcome: StepOutcome) -> None:
        shape, steps = outcome.shape, outcome.steps
        if shape is None or not shape.requests or not 0.0 < outcome.seconds < inf:
            return
        kept = _FORGET**steps
        self._largest = max(self._largest * kept, shape.requests)
        self._decoded = self._decoded * kept + outcome.decode_tokens
        self._ended = self._ended * kept + outcome.finished
        self._seconds += outcome.seconds
        self._steps += steps
        x = _features(shape.requests, shape.levels, shape.distinct, shape.tip, outcome.prefill_tokens / steps)
        self.step_time.learn(x, outcome.seconds / steps, steps)

    def rows(self) -> Iterator[Row]:
        """The sums of the fit, as `shared` passes them on."""
        return self.step_time.rows()

    def merge(self, rows: Iterable[Row]) -> None:
        """Adds the steps of other engines. ConfigurationError for invalid rows."""
        self.step_time.merge(rows)

    def _gain(self, slow: _Features, fast: _Features) -> _Gain:
        """Compares the second with the first. Without a fit it has no range that decides anything."""
        whole, _ = self.step_time.predict(slow)
        gain, error = self.step_time.predict([a - b for a, b in zip(slow, fast, strict=True)])
        if whole <= 0.0 or error == inf:
            return _Gain(0.0, -inf, -inf, 0.0)
        return _Gain(gain / whole, (gain - _ERRORS * error) / whole, (gain + _ERRORS * error) / whole, whole)

    def _may_try(self, gain: _Gain) -> bool:
        """Whether trials, with this one, keep to their part of the time. One that has begun goes on to its end."""
        if self._steps < self._until:
            return True
        life = self._decoded / self._ended if self._ended else inf  # steps that a request decodes for
        cost = self._cost + max(-gain.mean, _LEAST_LOSS) * gain.whole * life * (self._tried + 1)
        if cost > _SHARE * self._seconds:
            return False
        self._cost, self._until = cost, self._steps + life
        self._tried += 1
        return True

    def _compared(self, state: BatchState, shape: BatchShape) -> tuple[_Features, _Features, _Features, _Features]:
        """The features of four times, in this order:

        - a token in the batch as it is;
        - a token in the grown batch;
        - until the batch has drained, and then the siblings are decoded;
        - until both are decoded, where the siblings join the batch.

        The last two are for one step of each request's answer.
        """
        batch, levels, distinct, tip = shape
        siblings = 1 + state.siblings
        together = state.kept + state.sibling_gain if state.siblings else state.levels  # levels that the siblings share
        own = max(state.levels - together, 0)
        room = max(int(self._largest), batch + 1)
        alone, full = min(siblings, room), min(batch + siblings, room)
        joining = full - batch
        half = _features(batch / 2, levels / 2, max(distinct - own * batch / 2, levels / batch), tip)
        after = _features(alone, alone * state.levels, together + alone * own, together)
        new = state.missing + (joining - 1) * own
        mixed = _features(full, levels + joining * state.levels, distinct + new, state.kept)
        drained = _sum(half, after, siblings / alone)
        mean = min(batch / 2 + siblings, full)  # requests in the mean while the old ones end
        left = max(batch / 2 + siblings - full, 0.0)
        more = (mean - batch / 2) * state.levels
        meanwhile = _features(mean, levels / 2 + more, distinct + new, state.kept)
        added = _sum(meanwhile, after, left / alone) if state.depth else _sum(meanwhile, mixed, left / full)
        return _scaled(_features(batch, levels, distinct, tip), 1 / batch), _scaled(mixed, 1 / full), drained, added


def _features(requests: float, levels: float, distinct: float, tip: float, prefill_tokens: float = 0.0) -> _Features:
    """What a step contains, in the order of `step_time.COEFFICIENTS`."""
    of_all = tip * max(requests - 1, 0.0)
    return (1.0, requests, prefill_tokens, distinct, of_all, max(levels - distinct - of_all, 0.0))


def _sum(one: _Features, other: _Features, times: float) -> _Features:
    return [a + times * b for a, b in zip(one, other, strict=True)]


def _scaled(one: _Features, factor: float) -> _Features:
    return [factor * value for value in one]
