"""Log entries that the server has not acknowledged."""

from __future__ import annotations

import pytest

from plumage.directory.publisher import outbox as outbox_module
from plumage.directory.publisher.outbox import Outbox, append_commands, log_bytes


def test_outbox_drops_acknowledged_entries_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "ENTRIES_AT_ONCE", 3)
    outbox = Outbox()
    for number in range(5):
        outbox.add(bytes(12 * number))
    first = outbox.batch()
    assert [entry.seq for entry in first] == [1, 2, 3]
    assert outbox.batch() == first, "a batch without an acknowledgement is sent again"
    outbox.acknowledge(first)
    assert (len(outbox), outbox.acknowledged, outbox.last) == (2, 3, 5)
    assert outbox.size == log_bytes(outbox.batch()) > 12 * 7
    outbox.acknowledge(outbox.batch())
    assert (len(outbox), outbox.acknowledged, outbox.size) == (0, 5, 0)


def test_outbox_numbers_continue_after_clear() -> None:
    outbox = Outbox()
    outbox.add(b"records")
    outbox.add(b"", (1, 2))
    outbox.acknowledge(outbox.batch())
    outbox.add(b"records")
    outbox.clear()
    assert (len(outbox), outbox.size, outbox.acknowledged, outbox.last, outbox.last_checked) == (0, 0, 0, 3, 2)
    outbox.add(b"")
    assert [entry.seq for entry in outbox.batch()] == [4]


def test_outbox_is_full_above_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "OUTBOX_BYTES", 1000)
    outbox = Outbox()
    while not outbox.full:
        before = outbox.size
        outbox.add(bytes(120))
    assert before <= 1000 < outbox.size
    outbox.clear()
    assert not outbox.full


def test_append_commands_use_the_number_as_id() -> None:
    outbox = Outbox()
    outbox.add(b"records", (1, 2))
    outbox.add(b"others")
    marked, plain = append_commands("log", outbox.batch())
    assert marked[:3] == ("XADD", "log", "1-0")
    assert plain[:3] == ("XADD", "log", "2-0")
    assert dict(zip(plain[3::2], plain[4::2], strict=True))["r"] == b"others"
    assert len(marked) == len(plain) + 2, "the check mark"
