"""What a router knows of every replica's cache: which replica holds which chunk, in one table in its own memory.

Contract: `match(chain)` tells for each slot how many leading chunks of the chain it holds, and how many tokens these
are, without a round trip. The table is fed by the per-replica logs (`apply`), by whole snapshots (`refill`) and by the
router's own decisions (`hold_pending`: an owner by expectation, which an event confirms or time takes back, so that a
burst on a new prefix does not scatter during its first prefill).

Here its parts are put together: the chunks with their owners (`table`), which bit of an owner mask is which slot
(`lanes`), what is only expected and until when (`pending`), and snapshots on their way in (`refill`). What takes long
goes a piece at a time, in `upkeep` or in the refill's own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from plumage.directory.lanes import Lanes
from plumage.directory.pending import Holds, Pending
from plumage.directory.refill import PIECE, Refill
from plumage.directory.table import SHARDS, Change, Table
from plumage.errors import ConfigurationError

__all__ = ["SHARDS", "Change", "Mirror"]

LAPSES = 8  # decisions whose holds end at one step: about a millisecond

_NO_MATCH: tuple[Sequence[int], dict[int, tuple[int, int]]] = (), {}


class Mirror:
    """Chunks by owner for one pool. `capacity`: most chunks kept. `tokens_per_chunk`: the guess for chunks that no
    engine has counted yet, when nothing better is known."""

    def __init__(self, capacity: int = 2_000_000, tokens_per_chunk: float = 64.0) -> None:
        if capacity < SHARDS:
            raise ConfigurationError(f"a mirror's capacity must be at least {SHARDS} chunks, got {capacity}")
        self.capacity = capacity
        self._table = Table(capacity, tokens_per_chunk)
        self._lanes = Lanes(self._unmatch)
        self._pending = Pending()
        self._unlearning: dict[int, Refill] = {}  # by slot: empty snapshots into which much has to be carried
        self._matched = _NO_MATCH  # the last one, until what it found may have left a slot

    def __len__(self) -> int:
        return len(self._table)

    @property
    def evicted(self) -> int:
        """Chunks dropped at the table's bound."""
        return self._table.evicted

    @property
    def pending(self) -> int:
        """(chunk, slot) pairs that are owners by expectation only."""
        return self._pending.count

    def match(self, chain: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Leading (chunks, tokens) of `chain` that each slot holds; slots that hold none are absent."""
        found: dict[int, tuple[int, int]] = {}
        lanes = self._lanes
        expanded = lanes.expanded
        for left, chunks, tokens in self._table.walk(chain, lanes.alive):
            held = chunks, tokens
            for slot in expanded.get(left) or lanes.expand(left):
                found[slot] = held
        self._matched = chain, found
        return found

    def _unmatch(self) -> None:
        self._matched = _NO_MATCH

    # What replicas say

    def apply(self, slot: int, changes: Iterable[Change]) -> None:
        """What a replica's log says, in its order. Applying the same change twice changes nothing."""
        lane = self._lanes.of.get(slot) or self._lanes.open(slot)
        holds = self._pending.of(slot)
        before = len(holds)
        self._matched = _NO_MATCH
        self._table.write(lane, changes, holds)
        self._pending.count -= before - len(holds)

    def refill(self, slot: int) -> Refill:
        """A snapshot of the slot's replica, given in pieces; until `commit` the slot keeps what it had."""
        unlearning = self._unlearning.pop(slot, None)
        if unlearning is not None:
            unlearning.commit()  # the next snapshot may fail
        return Refill(slot, self._table, self._lanes, self._pending)

    def unlearn(self, slot: int) -> None:
        """What the slot's replica holds is unknown; what the router itself expects of it stays. Where this is much,
        the next `upkeep` does it: until then the slot keeps what it had, and no log of it may be applied."""
        refill = self.refill(slot)
        if len(self._pending.of(slot)) > PIECE:
            self._unlearning[slot] = refill
        else:
            refill.commit()

    def forget(self, slot: int) -> None:
        """Nothing is known of this slot any more: its replica is gone."""
        unlearning = self._unlearning.pop(slot, None)
        if unlearning is not None:
            unlearning.abandon()
        self._lanes.forget(slot)
        self._pending.forget(slot)  # the lane that they stand in is on its way out

    # Upkeep

    def upkeep(self, now: float) -> Iterator[None]:
        """All that waits for a quiet moment, a step of a millisecond at a time. To be gone through about each second,
        also while no server answers: replicas come and go all the same."""
        self.settle()
        yield from self.lapse(now)
        yield from self._unlearn()
        for _ in range(SHARDS):
            if not self.sweep():
                break
            yield

    def settle(self) -> None:
        """Let the table know what was matched lately: it is not dropped first."""
        self._table.settle()

    def _unlearn(self) -> Iterator[None]:
        while self._unlearning:
            slot, refill = next(iter(self._unlearning.items()))
            yield from refill.carry()
            if self._unlearning.get(slot) is refill:
                del self._unlearning[slot]
                refill.commit()

    def sweep(self) -> bool:
        """Wipe closed lanes out of one shard; True while there is more to do."""
        lanes = self._lanes
        if lanes.dead:
            lanes.wiped(self._table.sweep(lanes.dead))
        return bool(lanes.dead)

    # Pending owners

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, ttl: float) -> None:
        """`slot` was just sent this chain and will hold it: count it as an owner until `now + ttl`, or for good once
        its engine says so. Works for a slot that the directory has never heard of. Call it right after `match` with the
        same chain object: what that found, up to the last chunk that an engine told of, is not walked again."""
        pending = self._pending
        self._lapse_some(now)
        lane = self._lanes.of.get(slot) or self._lanes.open(slot)
        holds = pending.open(slot)
        before = len(holds)
        held = self._table.expect(lane, chain, self._first_hoped(chain, slot, holds), holds, now + ttl)
        pending.count += len(holds) - before
        if held:
            pending.lapse_at(now + ttl, slot, held)
        while pending.over(self.capacity // 4):
            self._release(*pending.lapsed())

    def _first_hoped(self, chain: Sequence[int], slot: int, holds: Holds) -> int:
        """Behind the last chunk that the slot's engine has confirmed, as far as the last match tells."""
        matched, found = self._matched
        depth = found[slot][0] if matched is chain and slot in found else 0
        while depth and chain[depth - 1] in holds:
            depth -= 1
        return depth

    def count_pending(self, chain: Sequence[int], slot: int, tokens: float) -> None:
        """The engine of `slot` counted so many tokens in this chain, which it was sent. What of its end is only
        expected there is no guess any more; what an engine told of stays as it was told."""
        lane, holds, first = self._lanes.of.get(slot), self._pending.of(slot), len(chain)
        while first and chain[first - 1] in holds:
            first -= 1
        if lane and first < len(chain):
            self._matched = _NO_MATCH
            self._table.correct(lane, chain, first, tokens)

    def guess_tokens(self, per_chunk: float) -> None:
        """What a chunk is taken to have that no engine has counted, behind none that one has."""
        self._table.tokens_per_chunk = per_chunk

    def drop_pending(self, chain: Sequence[int], slot: int) -> None:
        """The request that was to fill `slot` failed: its holds end now."""
        holds = self._pending.of(slot)
        self._release(slot, [chunk for chunk in chain if chunk in holds])

    def lapse(self, now: float) -> Iterator[None]:
        """End the holds whose time is over, those of some decisions at a step."""
        while self._lapse_some(now):
            yield

    def _lapse_some(self, now: float) -> bool:
        """True while there are more."""
        pending = self._pending
        for _ in range(LAPSES):
            if not pending.due(now):
                return False
            self._release(*pending.lapsed())
        return pending.due(now)

    def _release(self, slot: int, chunks: Sequence[int]) -> None:
        if chunks:
            self._pending.end(slot, chunks)
            self._matched = _NO_MATCH
            self._table.remove(self._lanes.of[slot], chunks)
