"""Entries of a writer that the server has not taken yet."""

from __future__ import annotations

import pytest

from plumage.directory.publisher import outbox as outbox_module
from plumage.directory.publisher.outbox import Outbox, appending, weight


def test_entries_are_removed_in_order_once_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "ENTRIES_AT_ONCE", 3)
    outbox = Outbox()
    for number in range(5):
        outbox.put(bytes(12 * number))
    first = outbox.batch()
    assert [entry.seq for entry in first] == [1, 2, 3]
    assert outbox.batch() == first, "a batch that was not taken is sent again"
    outbox.sent(first)
    assert (len(outbox), outbox.taken, outbox.made) == (2, 3, 5)
    assert outbox.size == weight(outbox.batch()) > 12 * 7
    outbox.sent(outbox.batch())
    assert (len(outbox), outbox.taken, outbox.size) == (0, 5, 0)


def test_numbers_continue_when_everything_is_written_again() -> None:
    outbox = Outbox()
    outbox.put(b"records")
    outbox.put(b"", (1, 2))
    outbox.sent(outbox.batch())
    outbox.put(b"records")
    outbox.clear()
    assert (len(outbox), outbox.size, outbox.taken, outbox.made, outbox.marked) == (0, 0, 0, 3, 2)
    outbox.put(b"")
    assert [entry.seq for entry in outbox.batch()] == [4]


def test_outbox_is_full_beyond_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "OUTBOX_BYTES", 1000)
    outbox = Outbox()
    while not outbox.full:
        before = outbox.size
        outbox.put(bytes(120))
    assert before <= 1000 < outbox.size
    outbox.clear()
    assert not outbox.full


def test_entry_has_its_number_as_its_id() -> None:
    outbox = Outbox()
    outbox.put(b"records", (1, 2))
    outbox.put(b"others")
    marked, plain = appending("log", outbox.batch())
    assert marked[:3] == ("XADD", "log", "1-0")
    assert plain[:3] == ("XADD", "log", "2-0")
    assert dict(zip(plain[3::2], plain[4::2], strict=True))["r"] == b"others"
    assert len(marked) == len(plain) + 2, "the check mark"
