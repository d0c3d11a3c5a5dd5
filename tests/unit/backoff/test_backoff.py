"""The one back-off: doubling, its cap, its jitter, and the reset."""

from __future__ import annotations

import random

from plumage.backoff import Backoff, delay


def test_delay_doubles_up_to_cap() -> None:
    assert [delay(failures, 0.5, 3.0) for failures in (1, 2, 3, 4, 10**6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_backoff_without_jitter_repeats_the_delays() -> None:
    backoff = Backoff(None, 1.0, 15.0)
    assert [backoff.next() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert backoff.failures == 6
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 1.0)


def test_backoff_never_exceeds_the_longest_wait() -> None:
    assert Backoff(None, 5.0, 1.0).next() == 1.0
    backoff = Backoff(random.Random(1), 5.0, 1.0)
    assert all(0.5 <= backoff.next() <= 1.0 for _ in range(200))


def test_jitter_draws_from_the_whole_span() -> None:
    spans = []
    for seed in range(200):
        backoff = Backoff(random.Random(seed), 0.1, 3.0)
        spans.append([backoff.next() for _ in range(8)])
    for turn, waits in enumerate(zip(*spans, strict=True), start=1):
        span = delay(turn, 0.1, 3.0)
        assert min(waits) >= 0.05
        assert max(waits) <= span
        assert max(waits) - min(waits) > 0.7 * (span - 0.05), "clients do not return at the same moment"
