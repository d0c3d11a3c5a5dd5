"""A claim: what a run should show, and the verdict on its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plumage_bench.evidence.figures import Figure, Measured

__all__ = ["NONE", "Claim", "Target", "Verdict", "at_least", "at_most", "between", "exactly", "judge"]


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    PASSED = "passed"
    MISSED = "missed"
    OLD = "old run"
    NOT_HERE = "not measurable here"
    NOT_YET = "not measured yet"
    NO_TARGET = "no target"


@dataclass(frozen=True, slots=True)
class Target:
    """From `least` to `most`; None for no bound. by_bound: not only the figure but also the end of its interval must be
    within; a run without that end misses."""

    least: float | None = None
    most: float | None = None
    by_bound: bool = False

    def __str__(self) -> str:
        if self.least is None and self.most is None:
            return "–"
        if self.least is not None and self.least == self.most:
            return f"{self.least:,g}"
        if self.least is not None and self.most is not None:
            return f"{self.least:,g} to {self.most:,g}"
        text = f"≥ {self.least:,g}" if self.least is not None else f"≤ {self.most:,g}"
        return f"{text} at the interval's end" if self.by_bound else text

    def holds(self, value: float | None) -> bool:
        """Whether `value` is within the target."""
        if value is None:
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


NONE = Target()


def at_least(least: float, *, by_bound: bool = False) -> Target:
    return Target(least, None, by_bound)


def at_most(most: float, *, by_bound: bool = False) -> Target:
    return Target(None, most, by_bound)


def between(least: float, most: float) -> Target:
    return Target(least, most)


def exactly(value: float) -> Target:
    return Target(value, value)


@dataclass(frozen=True, slots=True)
class Claim:
    """text: the meaning of the figure, in one line. file: the run's file in docs/evidence, without .json; empty where
    nothing can be measured here. paper: the paper's own figure, with the paper's name; empty for a target of Plumage's.
    command: what would measure it, if there is no kept run or the run does not name it."""

    text: str
    file: str
    figure: Figure | None
    target: Target = NONE
    paper: str = ""
    command: str = ""


def judge(claim: Claim, found: Measured | None, old: bool = False) -> Verdict:
    """The verdict on `claim`. found: the figures of the kept run. old: the run is one that is not judged."""
    if not claim.file:
        return Verdict.NOT_HERE
    if found is None:
        return Verdict.NOT_YET
    if old:
        return Verdict.OLD
    target = claim.target
    if target == NONE:
        return Verdict.NO_TARGET
    if _met(target, found):
        return Verdict.REPRODUCED if claim.paper else Verdict.PASSED
    return Verdict.REFUTED if claim.paper and _all_outside(target, found) else Verdict.MISSED


def _met(target: Target, found: Measured) -> bool:
    if not target.by_bound:
        return target.holds(found.value)
    return target.holds(found.low if target.most is None else found.high)


def _all_outside(target: Target, found: Measured) -> bool:
    """Whether the figure, and its interval if there is one, are entirely outside of the target."""
    near = found.high if target.least is not None and found.value < target.least else found.low
    return not target.holds(found.value) and not target.holds(found.value if near is None else near)
