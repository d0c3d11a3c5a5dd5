"""What a router would know of the engines' caches, in virtual time: their events, `lag` seconds late, and the router's
own pending owners until then (decision: routing adds a pending owner with an expiry at once).

Copies are counted as in the events: a duplicate is published again, and a removal takes one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from plumage.blocks.events import BlockEvent, Cleared, EventSink, Removed, Stored

__all__ = ["DirectoryView"]


class DirectoryView:
    """Slots are bits of an owner mask for each block. `lag`: seconds from a step's end until its events are visible.
    `seen`: the time up to which events are visible at a time; earlier than that time while the directory is away."""

    def __init__(
        self,
        *,
        lag: float = 0.050,
        pending_seconds: float = 10.0,
        seen: Callable[[float], float] = float,
    ) -> None:
        self._lag = lag
        self._seen = seen
        self._pending_seconds = pending_seconds
        self._owners: dict[int, int] = {}
        self._extra: dict[tuple[int, int], int] = {}
        self._pending: dict[int, int] = {}
        self._fresh: dict[int, list[BlockEvent]] = {}
        self._coming: list[tuple[float, int, int, Sequence[BlockEvent]]] = []
        self._expiring: list[tuple[float, int, int, Sequence[int]]] = []
        self._order = 0

    def sink(self, slot: int) -> EventSink:
        """An event sink for the slot's block pool. `stepped` sets the time at which its events become visible."""
        return self._fresh.setdefault(slot, []).append

    def stepped(self, slot: int, at: float) -> None:
        """The events since the last call take effect at `at`."""
        events = self._fresh.get(slot)
        if events:
            self._order += 1
            heappush(self._coming, (at + self._lag, self._order, slot, tuple(events)))
            events.clear()

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, wait: float = 0.0) -> None:
        """The slot will soon have this chain, because a request was just sent there. `wait`: seconds until its turn, as
        far as the policy predicts them; the chain counts as pending for that much longer."""
        self.hold_until(chain, slot, now + self._pending_seconds + wait)

    def hold_until(self, chain: Sequence[int], slot: int, until: float) -> None:
        """The slot will soon have this chain. It counts as pending at most until then."""
        bit = 1 << slot
        missing = [block for block in chain if not self._owners.get(block, 0) & bit]
        for block in missing:
            self._pending[block] = self._pending.get(block, 0) | bit
        self._order += 1
        heappush(self._expiring, (until, self._order, slot, missing))

    def match(self, chain: Sequence[int], now: float) -> Mapping[int, int]:
        """slot → number of leading blocks that it has or will have, by the events that arrived until `now`."""
        self._arrive(now)
        owners, pending = self._owners, self._pending
        found: dict[int, int] = {}
        alive = -1
        for depth, block in enumerate(chain):
            still = (owners.get(block, 0) | pending.get(block, 0)) & alive
            if still != alive:
                if depth:
                    _note(found, alive & ~still, depth)
                if not still:
                    return found
                alive = still
        if chain:
            _note(found, alive, len(chain))
        return found

    def _arrive(self, now: float) -> None:
        seen = self._seen(now)
        while self._coming and self._coming[0][0] <= seen:
            _, _, slot, events = heappop(self._coming)
            for event in events:
                self._apply(slot, event)
        while self._expiring and self._expiring[0][0] <= now:
            _, _, slot, blocks = heappop(self._expiring)
            self._end_pending(blocks, 1 << slot)

    def _apply(self, slot: int, event: BlockEvent) -> None:
        if isinstance(event, Stored):
            self._store(slot, event.hashes)
        elif isinstance(event, Removed):
            self._remove(slot, event.hashes)
        elif isinstance(event, Cleared):
            self._remove(slot, [block for block, mask in self._owners.items() if mask >> slot & 1])

    def _store(self, slot: int, blocks: Sequence[int]) -> None:
        bit, owners = 1 << slot, self._owners
        for block in blocks:
            mask = owners.get(block, 0)
            if mask & bit:
                self._extra[slot, block] = self._extra.get((slot, block), 0) + 1
            else:
                owners[block] = mask | bit
        self._end_pending(blocks, bit)

    def _remove(self, slot: int, blocks: Sequence[int]) -> None:
        bit, owners = 1 << slot, self._owners
        for block in blocks:
            extra = self._extra.pop((slot, block), 0)
            if extra:
                if extra > 1:
                    self._extra[slot, block] = extra - 1
                continue
            left = owners.get(block, 0) & ~bit
            if left:
                owners[block] = left
            else:
                owners.pop(block, None)

    def _end_pending(self, blocks: Sequence[int], bit: int) -> None:
        """Ends pending entries that are confirmed or expired."""
        for block in blocks:
            mask = self._pending.get(block, 0)
            if mask & bit:
                if mask == bit:
                    del self._pending[block]
                else:
                    self._pending[block] = mask & ~bit


def _note(found: dict[int, int], mask: int, depth: int) -> None:
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = depth
        mask ^= low
