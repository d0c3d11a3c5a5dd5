"""Times and token counts of vLLM's steps, from its schedule and its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plumage_engine.vllm.step_times import StepTimes


@dataclass(eq=False)
class FakeOutput:
    """The fields of vLLM's `SchedulerOutput` that are read."""

    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def ended(times: StepTimes, output: Any, now: float) -> tuple[float, int, int] | None:
    outcome = times.ended(output, now)
    return None if outcome is None else (outcome.seconds, outcome.decode_tokens, outcome.prefill_tokens)


def test_step_lasts_from_its_schedule_to_its_output() -> None:
    times, step = StepTimes(), FakeOutput({"a": 1, "b": 1, "c": 40})
    times.begun(step, 10.0)
    assert ended(times, step, 10.5) == (0.5, 2, 40)


def test_asynchronous_step_begins_when_the_previous_one_ends() -> None:
    times, first, second = StepTimes(), FakeOutput({"a": 1}), FakeOutput({"a": 1})
    times.begun(first, 10.0)
    times.begun(second, 10.1)
    assert ended(times, first, 11.0) == (1.0, 1, 0)
    assert ended(times, second, 11.5) == (0.5, 1, 0)


def test_drafts_are_neither_prefill_nor_decoded_tokens() -> None:
    times, step = StepTimes(), FakeOutput({"a": 4, "b": 1, "c": 9}, {"a": [1, 2, 3]})
    times.begun(step, 0.0)
    assert ended(times, step, 1.0) == (1.0, 2, 9)


def test_unknown_or_empty_step_gives_nothing() -> None:
    times, empty, lost, step = StepTimes(), FakeOutput({}), FakeOutput({"a": 1}), FakeOutput({"a": 1})
    assert ended(times, lost, 1.0) is None
    for output in (empty, lost, step):
        times.begun(output, 2.0)
    assert ended(times, empty, 3.0) is None
    assert ended(times, step, 4.0) == (1.0, 1, 0)  # the output of `lost` never arrived
