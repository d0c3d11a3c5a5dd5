"""Gaps, repeats and restarts by sequence number and time."""

from __future__ import annotations

import pytest

from plumage_engine.agent.events.sequence import SequenceCheck, Sequencer


def at(last: int, ts: float | None) -> Sequencer:
    sequencer = Sequencer()
    sequencer.advance(last, ts)
    return sequencer


@pytest.mark.parametrize(
    ("sequencer", "seq", "ts", "check"),
    [
        (Sequencer(), 0, 1.0, SequenceCheck.NEXT),
        (Sequencer(), 3, 1.0, SequenceCheck.GAP),
        (at(4, 10.0), 5, 11.0, SequenceCheck.NEXT),
        (at(4, 10.0), 5, 9.0, SequenceCheck.NEXT),
        (at(4, 10.0), 7, 11.0, SequenceCheck.GAP),
        (at(4, 10.0), 4, 10.0, SequenceCheck.REPEATED),
        (at(4, 10.0), 2, 8.0, SequenceCheck.REPEATED),
        (at(4, 10.0), 0, 12.0, SequenceCheck.RESTARTED),
        (at(4, None), 2, 99.0, SequenceCheck.REPEATED),
    ],
)
def test_verdicts(sequencer: Sequencer, seq: int, ts: float, check: SequenceCheck) -> None:
    assert sequencer.judge(seq, ts) is check


@pytest.mark.parametrize(
    ("sequencer", "replayed", "continues"),
    [
        (Sequencer(), [], True),
        (Sequencer(), [(0, 1.0), (1, 2.0)], True),
        (Sequencer(), [(5, 1.0)], False),
        (at(4, 10.0), [(4, 10.0), (5, 11.0)], True),
        (at(4, None), [(4, 10.0)], True),
        (at(4, 10.0), [(4, 12.0)], False),
        (at(4, 10.0), [(6, 12.0)], False),
        (at(4, 10.0), [], False),
    ],
    ids=["idle", "from the start", "late", "same engine", "after a snapshot", "another engine", "forgot", "restarted"],
)
def test_replay_must_begin_with_the_last_applied_event(
    sequencer: Sequencer, replayed: list[tuple[int, float]], continues: bool
) -> None:
    assert sequencer.continues(replayed) is continues
