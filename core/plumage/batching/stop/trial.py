"""What a choice is worth: the throughput from its first use until the batch has turned over (FEATHER §4.3.1, changed).

The paper credits a decision with the next step. A STOP first costs throughput, while running requests without a shared
prefix end. It pays once the next batch shares one. No single step shows both. So a choice made in a state is kept for a
*trial*, and credited at its end with all that came after its first use. A trial lasts twice the steps of a request:
once for the old batch to end, once for the new one. A trial ends at once when it is the tokens of a whole batch behind
the best known throughput. So no trial costs more than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin

__all__ = ["Trial"]

_LONGEST = 8192  # steps; for engines on which nothing ever finishes
_FORGET = 0.999  # a step: the weight of what is known of request lengths and batches


class _Choice(NamedTuple):
    """An action, and the state of the trial at its first use."""

    action: Decision
    steps: int
    tokens: float
    seconds: float


class Trial:
    """The choices held now. lives: of a request, that a trial lasts."""

    def __init__(self, lives: float = 2.0) -> None:
        self._lives = lives
        self._choices: dict[Bin, _Choice] = {}
        self._steps = 0
        self._tokens = self._seconds = 0.0
        self._decoded = self._ended = 0.0  # tokens and requests lately, which give a life
        self._batch = 0.0  # the largest lately

    def choice(self, state: Bin) -> Decision | None:
        """What this trial does in `state`; None if it has not been in this state yet."""
        held = self._choices.get(state)
        return held.action if held else None

    def hold(self, state: Bin, action: Decision) -> None:
        self._choices[state] = _Choice(action, self._steps, self._tokens, self._seconds)

    def step(self, tokens: int, seconds: float, finished: int, best: float, steps: int = 1) -> bool:
        """A step, or `steps`, decoded `tokens` in `seconds`; True when that ends the trial. best: tokens/s known to be
        possible."""
        kept = _FORGET**steps
        self._decoded = self._decoded * kept + tokens
        self._ended = self._ended * kept + finished
        self._batch = max(self._batch * kept, tokens / steps)
        if not self._choices:
            return False
        self._steps += steps
        self._tokens += tokens
        self._seconds += seconds
        behind = best * self._seconds - self._tokens
        return self._steps >= self._lives * self._life or behind > self._batch * self._life

    def end(self) -> Iterator[tuple[Bin, Decision, float]]:
        """Each state's choice and its throughput, in the order of first use; choices
        that covered less than half of the trial are dropped. A new trial begins."""
        choices, self._choices = self._choices, {}
        steps, tokens, seconds = self._steps, self._tokens, self._seconds
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        for state, held in choices.items():
            if 2 * held.steps <= steps and seconds > held.seconds:
                yield state, held.action, (tokens - held.tokens) / (seconds - held.seconds)

    @property
    def _life(self) -> float:
        """Steps that a request decodes for."""
        return min(self._decoded / self._ended, _LONGEST) if self._ended else _LONGEST
