"""Learned tables between engines: packed, refused when corrupt, merged so that an echo is no experience."""

from __future__ import annotations

import random
from math import inf, nan

import msgspec
import pytest

from plumage.batching.interface import Decision
from plumage.batching.stop import Heuristic, Predictive, QLearning, QLearningPaper, Ucb, UcbPaper
from plumage.batching.stop.shared import CELL, MOST_ROWS, SharesTable, checked, experience, merged, pack, unpack
from plumage.errors import ConfigurationError

ROWS = [(3, 1, 2, "Add", 10.0, 5000.0), (3, 1, 2, "Stop", 30.0, 30000.0)]


def test_packed_table_reads_back() -> None:
    assert unpack(pack(ROWS)) == ROWS


@pytest.mark.parametrize(
    "row",
    [(3, 1, 2, "Maybe", 1.0, 1.0), (3, 1, 2, "Add", -1.0, 1.0), (3, 1, 2, "Add", nan, 1.0), (3, 1, 2, "Add", 1.0, inf),
     (-1, 1, 2, "Add", 1.0, 1.0), (3, 1, 10**9, "Add", 1.0, 1.0)],
)  # fmt: skip
def test_corrupt_row_invalidates_the_table(row: tuple[int, int, int, str, float, float]) -> None:
    with pytest.raises(ConfigurationError):
        unpack(msgspec.msgpack.encode([*ROWS, row]))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), pack(ROWS)[:-3]])
def test_bytes_without_table_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        unpack(data)


def test_table_is_bounded() -> None:
    with pytest.raises(ConfigurationError, match="rows"):
        checked(ROWS[:1] * (MOST_ROWS + 1))


def test_start_is_the_weighted_mean_with_a_small_weight() -> None:
    other = [(3, 1, 2, "Stop", 90.0, 45000.0)]
    start = {row[3]: row for row in merged([ROWS, other])}
    assert start["Add"] == ROWS[0]
    _, _, _, _, count, value = start["Stop"]
    assert count == CELL
    assert value / count == pytest.approx((30000.0 + 45000.0) / 120.0)
    assert merged([]) == merged([[(1, 1, 1, "Add", 0.0, 0.0)]]) == []


def test_echo_is_no_experience() -> None:
    once = merged([ROWS])
    assert merged([ROWS, once, once]) == [(*row[:5], pytest.approx(row[5])) for row in once], (
        "an engine shares only its own experience"
    )
    small = [(1, 0, 1, "Add", 2.0, 200.0)]
    assert merged([small] * 50) == small


def test_experience_counts_the_choices() -> None:
    assert experience(ROWS) == 40.0


@pytest.mark.parametrize("policy", [Ucb(), QLearning(random.Random(1))])
def test_learning_policy_takes_a_table(policy: SharesTable) -> None:
    assert isinstance(policy, SharesTable)
    policy.merge(ROWS)
    assert [row[:5] for row in policy.rows()] == [row[:5] for row in ROWS]
    with pytest.raises(ConfigurationError):
        policy.merge([(3, 1, 2, "Maybe", 1.0, 1.0)])
    assert [row[:5] for row in policy.rows()] == [row[:5] for row in ROWS]


def test_predicting_policy_shares_its_fit() -> None:
    assert isinstance(Predictive(), SharesTable)


@pytest.mark.parametrize("policy", [Heuristic(), UcbPaper(), QLearningPaper(random.Random(1))])
def test_fixed_rule_and_printed_forms_take_no_table(policy: object) -> None:
    """The states of the printed forms are not those of the others' tables."""
    assert not isinstance(policy, SharesTable)


def test_started_bandit_chooses_as_the_bandit_that_shared_its_table() -> None:
    policy = Ucb(exploration=0.01)
    policy.merge(merged([ROWS]))
    assert policy._choose((3, 1, 2)) is Decision.STOP, "500 tokens/s with ADD, 1,000 with STOP"
