"""The period over which a decision is judged: the paper's next step, or our trial (FEATHER §4.3.1, decision 0001)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from plumage.batching.interface import Decision
from plumage.batching.stop.bins import Bin
from plumage.batching.stop.trial import Trial
from plumage.errors import ConfigurationError

__all__ = ["Credit", "Credited", "NextStep", "make_credited"]

_MOST = 4096  # decisions that are not judged yet, on engines that decode nothing


class Credit(Enum):
    """TRIAL: ours, `trial.py`. STEP: the paper's, with the paper's formulas and our states."""

    TRIAL = "Trial"
    STEP = "Step"


class Credited(Protocol):
    """Decisions that are not judged yet. Throughputs are decode tokens per second."""

    def choice(self, state: Bin) -> Decision | None:
        """The earlier choice that still holds in `state`; None if the policy may choose."""
        ...

    def hold(self, state: Bin, action: Decision) -> None:
        """`action` was chosen in `state`."""
        ...

    def step(self, tokens: int, seconds: float, finished: int, best: float, steps: int = 1) -> bool:
        """A step, or `steps`, decoded `tokens` in `seconds`; True when the decisions can be judged."""
        ...

    def end(self) -> Iterator[tuple[Bin, Decision, float]]:
        """Each decision in order with the throughput it is credited with; none is left."""
        ...


class NextStep:
    """Every decision is credited with the throughput of the next step that has one (§4.3.4, Alg. 7 line 13)."""

    def __init__(self) -> None:
        self._taken: deque[tuple[Bin, Decision]] = deque(maxlen=_MOST)
        self._throughput = 0.0

    def choice(self, state: Bin) -> Decision | None:
        return None

    def hold(self, state: Bin, action: Decision) -> None:
        self._taken.append((state, action))

    def step(self, tokens: int, seconds: float, finished: int, best: float, steps: int = 1) -> bool:
        self._throughput = tokens / seconds
        return bool(self._taken)

    def end(self) -> Iterator[tuple[Bin, Decision, float]]:
        while self._taken:
            state, action = self._taken.popleft()
            yield state, action, self._throughput


def make_credited(name: str) -> tuple[Credit, Credited]:
    """ConfigurationError for an unknown name."""
    try:
        credit = Credit(name)
    except ValueError:
        known = ", ".join(one.value for one in Credit)
        raise ConfigurationError(f"no credit named {name!r}; there are: {known}") from None
    return credit, NextStep() if credit is Credit.STEP else Trial()
