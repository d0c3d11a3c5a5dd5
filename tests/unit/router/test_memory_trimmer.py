"""Free memory returns to the system once a burst of bodies is over, also one between two ticks."""

from __future__ import annotations

from plumage_router.process.memory import MemoryTrimmer

MB = 1 << 20


def trims(*ticks: tuple[int, int]) -> list[int]:
    """The ticks that trimmed, from (peak, buffered) of each."""
    done: list[int] = []
    number = 0
    trimmer = MemoryTrimmer(lambda: done.append(number))
    for number, (peak, buffered) in enumerate(ticks):  # noqa: B007 - the trimmer reads it
        trimmer.check(peak, buffered)
    return done


def test_burst_between_two_ticks_counts() -> None:
    assert trims((0, 0), (20 * MB, 0), (0, 0)) == [1]


def test_half_of_the_peak_is_worth_a_trim() -> None:
    assert trims((20 * MB, 20 * MB), (20 * MB, 11 * MB), (11 * MB, 10 * MB), (10 * MB, 10 * MB)) == [2]


def test_small_bodies_never_trim() -> None:
    assert trims(*[(7 * MB, 0)] * 5) == []
