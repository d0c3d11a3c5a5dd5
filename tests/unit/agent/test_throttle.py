"""Above its rate the throttle publishes only what it saw twice. What stays cached is published in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumage.directory.schema import Change
from plumage_engine.agent.directory.throttle import Throttle


def adds(*chunks: int) -> list[Change]:
    return [Change(chunk, 1, 64) for chunk in chunks]


def test_everything_passes_below_the_rate() -> None:
    throttle = Throttle(rate=10)
    assert throttle.pass_on(adds(*range(10)), 0.0) == adds(*range(10))
    assert throttle.pass_on(adds(*range(10, 15)), 0.5) == adds(*range(10, 15))
    assert throttle.withheld == 0


def test_only_repeated_chunks_pass_above_the_rate() -> None:
    throttle = Throttle(rate=2)
    assert throttle.pass_on(adds(1, 2, 3, 4), 0.0) == adds(1, 2)
    throttle.pass_on([Change(3, 0)], 0.0)  # evicted …
    assert throttle.pass_on(adds(3, 5), 0.0) == adds(3)  # … and computed again
    assert len(throttle) == 2


def test_withheld_chunks_follow_when_there_is_room() -> None:
    throttle = Throttle(rate=2)
    throttle.pass_on(adds(1, 2, 3, 4, 5), 0.0)
    assert throttle.pass_on([], 1.0) == adds(3, 4)
    assert throttle.pass_on([], 60.0) == adds(5)


def test_evicted_chunk_is_not_published_late() -> None:
    throttle = Throttle(rate=1)
    throttle.pass_on(adds(1, 2), 0.0)
    assert throttle.pass_on([Change(2, 0, 0)], 0.0) == [Change(2, 0, 0)]
    assert throttle.pass_on([], 10.0) == []


def test_memory_is_bounded() -> None:
    throttle = Throttle(rate=1, remembered=10)
    throttle.pass_on(adds(*range(1000)), 0.0)
    assert len(throttle) == 10


def test_clear_forgets_withheld_chunks() -> None:
    throttle = Throttle(rate=1)
    throttle.pass_on(adds(1, 2), 0.0)
    throttle.clear()
    assert throttle.pass_on([], 10.0) == []


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=60), st.lists(st.floats(0, 0.4), min_size=60))
def test_published_state_equals_the_engine_after_a_quiet_time(
    steps: list[tuple[int, int]], pauses: list[float]
) -> None:
    """Whatever was withheld before."""
    throttle, now = Throttle(rate=3), 0.0
    held: dict[int, int] = {}
    known: dict[int, int] = {}

    def learn(changes: list[Change]) -> None:
        for change in changes:
            known[change.chunk] = change.tier
            if not change.tier:
                del known[change.chunk]

    for (chunk, tier), pause in zip(steps, pauses, strict=False):
        if tier != held.get(chunk, 0):
            held[chunk] = tier
            if not tier:
                del held[chunk]
            learn(throttle.pass_on([Change(chunk, tier, 1)], now))
        now += pause
    for _ in range(10):
        now += 1.0
        learn(throttle.pass_on([], now))
    assert known == held
