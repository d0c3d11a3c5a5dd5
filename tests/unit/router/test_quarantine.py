"""Which bodies are refused after failures of engines, and for how long."""

from __future__ import annotations

import itertools

import pytest

from plumage.settings.router_config import QuarantineConfig
from plumage_router.request.quarantine import Quarantine

CONFIG = QuarantineConfig(strikes=2, seconds=10, cap=35, memory=100, bodies=3)


REPLICAS = itertools.count()


def _quarantine() -> Quarantine:
    return Quarantine(CONFIG)


def strike(quarantine: Quarantine, body: bytes, now: float, replica: str = "") -> bool:
    """By its own replica unless one is named."""
    return quarantine.strike(body, replica or f"chat-{next(REPLICAS)}", now)


def test_one_strike_does_not_refuse() -> None:
    quarantine = _quarantine()
    assert not strike(quarantine, b"a", 0.0)
    assert quarantine.left(b"a", 0.0) == 0.0
    assert quarantine.begun == 0


def test_two_strikes_refuse_only_this_body() -> None:
    quarantine = _quarantine()
    strike(quarantine, b"a", 0.0)
    assert strike(quarantine, b"a", 1.0)
    assert [quarantine.left(b"a", at) for at in (1.0, 6.0, 11.0)] == [10.0, 5.0, 0.0]
    assert quarantine.left(b"b", 1.0) == 0.0
    assert (quarantine.begun, quarantine.refused(1.0), quarantine.refused(12.0)) == (1, 1, 0)


def test_next_quarantine_is_twice_as_long_up_to_cap() -> None:
    quarantine = _quarantine()
    strike(quarantine, b"a", 0.0)
    now, lengths = 0.0, []
    for _ in range(4):
        assert strike(quarantine, b"a", now)
        lengths.append(quarantine.left(b"a", now))
        now += lengths[-1]
    assert lengths == [10.0, 20.0, 35.0, 35.0]


def test_late_strikes_do_not_extend_quarantine() -> None:
    quarantine = _quarantine()
    for _ in range(9):
        strike(quarantine, b"a", 0.0)
    assert quarantine.left(b"a", 0.0) == 10.0
    assert quarantine.begun == 1


def test_copies_on_one_replica_are_one_strike() -> None:
    quarantine = _quarantine()
    assert not any(strike(quarantine, b"a", 0.1 * copy, "chat-1") for copy in range(9))
    assert quarantine.left(b"a", 1.0) == 0.0
    assert strike(quarantine, b"a", 1.0, "chat-2")


def test_replica_that_fails_again_later_counts_again() -> None:
    quarantine = _quarantine()
    assert not strike(quarantine, b"a", 0.0, "chat-1")
    assert strike(quarantine, b"a", 10.0, "chat-1")


def test_complete_answer_clears_body() -> None:
    quarantine = _quarantine()
    strike(quarantine, b"a", 0.0)
    quarantine.clear(b"a")
    assert not strike(quarantine, b"a", 1.0)


@pytest.mark.parametrize(("pause", "refused"), [(99.0, True), (101.0, False)])
def test_body_without_strikes_is_forgotten(pause: float, refused: bool) -> None:
    quarantine = _quarantine()
    strike(quarantine, b"a", 0.0)
    assert strike(quarantine, b"a", pause) is refused


def test_oldest_of_too_many_bodies_is_forgotten() -> None:
    quarantine = _quarantine()
    for at, body in enumerate((b"a", b"b", b"c", b"a", b"d")):
        strike(quarantine, body, float(at))
    assert len(quarantine.cases) == 3
    assert quarantine.left(b"a", 5.0) > 0
    assert not strike(quarantine, b"b", 5.0)


def test_flood_of_bodies_stays_within_bound() -> None:
    quarantine = _quarantine()
    for number in range(10_000):
        strike(quarantine, b"%d" % number, number / 1000)
    assert len(quarantine.cases) == 3
