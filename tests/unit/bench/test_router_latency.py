"""The latency that a router adds: rounds are reassembled, and verdicts depend on the machine's noise."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from plumage_bench.benches.router.latency import LIMIT, Rounds


def _samples(rows: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack("<III", *row) for row in rows)


def _rounds(added: float, noise: float, count: int = 1000) -> Rounds:
    """`added`: µs through the router; `noise`: spread of the mock's own latency."""
    rng = np.random.default_rng(5)
    micros = 200.0 + noise * rng.exponential(size=(count, 3))
    micros[:, 2] += added
    return Rounds(micros)


def test_answers_are_sorted_into_rounds_and_broken_rounds_are_left_out() -> None:
    first = [(0, 0, 10), (2, 0, 30), (1, 0, 20), (1, 1, 21), (0, 1, 11), (2, 2, 32)]
    second = [(2, 0, 300), (1, 0, 200), (0, 0, 100)]
    rounds = Rounds.read([_samples(first), _samples(second), b""])
    assert rounds.micros.tolist() == [[10, 20, 30], [100, 200, 300]]
    assert rounds.percentile(50, (0, 1)) == 60


@pytest.mark.parametrize(
    ("added", "noise", "verdict"),
    [
        (LIMIT / 2, 20.0, "shown: at most 1 ms"),
        (LIMIT * 2, 20.0, "not met: above 1 ms"),
        (LIMIT * 0.99, 20_000.0, "not shown: the noise is too large"),
    ],
)
def test_verdict_needs_little_noise(added: float, noise: float, verdict: str) -> None:
    rounds = _rounds(added, noise)
    difference, alike = rounds.added(99, seed=1), rounds.noise(99, seed=1)
    assert difference.verdict() == verdict
    assert difference.low <= difference.value <= difference.high
    assert alike.low <= 0.0 <= alike.high


def test_seed_repeats_the_interval() -> None:
    rounds = _rounds(500.0, 100.0)
    assert rounds.added(99, seed=3) == rounds.added(99, seed=3)
    assert rounds.added(99, seed=3) != rounds.added(99, seed=4)


def test_clustered_stalls_widen_the_interval() -> None:
    """Eighteen slow answers in one place are one stall, not eighteen."""
    together, apart = _rounds(500.0, 10.0), _rounds(500.0, 10.0)
    together.micros[100:118, 2] += 5_000.0
    apart.micros[::55, 2] += 5_000.0
    wide, narrow = together.added(99, seed=1), apart.added(99, seed=1)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
