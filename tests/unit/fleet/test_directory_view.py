"""A virtual router's view of caches: delayed by the lag, pending at once, copies counted."""

from __future__ import annotations

from plumage.blocks.events import Cleared, Removed, Stored
from plumage_bench.virtual_time.directory_view import DirectoryView

_CHAIN = (11, 12, 13)


def _stored(view: DirectoryView, slot: int, blocks: tuple[int, ...], at: float) -> None:
    view.sink(slot)(Stored(blocks, None))
    view.stepped(slot, at)


def test_events_are_usable_after_the_lag() -> None:
    view = DirectoryView(lag=0.05)
    _stored(view, 2, _CHAIN, 1.0)
    assert view.match(_CHAIN, 1.04) == {}
    assert view.match(_CHAIN, 1.06) == {2: 3}
    assert view.match((11, 12, 99), 1.06) == {2: 2}


def test_routed_prompt_is_pending_at_once_and_expires() -> None:
    view = DirectoryView(pending_seconds=10.0)
    view.hold_pending(_CHAIN, 1, 0.0)
    assert view.match(_CHAIN, 0.0) == {1: 3}
    assert view.match(_CHAIN, 10.1) == {}


def test_pending_time_includes_the_wait_in_the_queue() -> None:
    view = DirectoryView(pending_seconds=10.0)
    view.hold_pending(_CHAIN, 1, 0.0, 30.0)
    assert view.match(_CHAIN, 39.9) == {1: 3}
    assert view.match(_CHAIN, 40.1) == {}


def test_confirmed_owner_stays_when_the_pending_entry_expires() -> None:
    view = DirectoryView(lag=0.0, pending_seconds=10.0)
    view.hold_pending(_CHAIN, 1, 0.0)
    _stored(view, 1, _CHAIN, 0.5)
    assert view.match(_CHAIN, 11.0) == {1: 3}


def test_removed_block_ends_the_prefix() -> None:
    view = DirectoryView(lag=0.0)
    _stored(view, 0, _CHAIN, 0.0)
    _stored(view, 3, _CHAIN, 0.0)
    view.sink(0)(Removed((13,)))
    view.stepped(0, 1.0)
    assert view.match(_CHAIN, 1.0) == {0: 2, 3: 3}
    view.sink(3)(Cleared())
    view.stepped(3, 2.0)
    assert view.match(_CHAIN, 2.0) == {0: 2}


def test_duplicate_outlives_the_removal_of_one_copy() -> None:
    view = DirectoryView(lag=0.0)
    _stored(view, 0, _CHAIN, 0.0)
    _stored(view, 0, _CHAIN, 0.0)
    for at, left in ((1.0, {0: 3}), (2.0, {})):
        view.sink(0)(Removed(_CHAIN))
        view.stepped(0, at)
        assert view.match(_CHAIN, at) == left
