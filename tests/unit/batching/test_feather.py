"""FEATHER's queue: its stop at a stranger, and the batch that its policy decides about."""

from __future__ import annotations

from support.queues import Never, candidate

from plumage.batching import BatchState, Decision, StepOutcome
from plumage.batching.feather import Feather


def test_feather_stops_at_a_stranger_and_continues_when_the_batch_has_ended() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one", "aaaa"))
    waiting.insert(candidate("stranger", "zzzz"))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    assert (len(waiting), waiting.stops) == (1, 1)
    waiting.finish("one")
    assert waiting.select(now=0.0) == "stranger"


def test_feather_decides_again_after_each_step() -> None:
    waiting = Feather(Never())
    waiting.insert(candidate("one"))
    waiting.add("one")
    waiting.insert(candidate("two"))
    for _ in range(3):
        waiting.select(now=0.0)
        waiting.observe(StepOutcome(0.01, 1))
    assert waiting.stops == 3


def test_algorithm_7_b_is_the_current_batch_without_new_admissions() -> None:
    seen: list[int] = []

    class Watching(Never):
        def decide(self, state: BatchState) -> Decision:
            seen.append(state.batch)
            return Decision.ADD

    waiting = Feather(Watching())
    for number in range(4):
        waiting.insert(candidate(number))
        waiting.add(waiting.select(now=0.0))
        waiting.observe(StepOutcome(0.01, 1))
    assert seen == [1, 2, 3]
