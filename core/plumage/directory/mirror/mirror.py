"""The router's table of all caches: which replica holds which chunk, in the router's own memory.

Contract: `match(chain)` returns for each slot how many leading chunks and tokens of the chain it holds. It needs no
round trip. The table has three sources: the logs of the replicas (`apply`), their snapshots (`stage_snapshot`) and the
router's own decisions (`hold_pending`). A decision makes a pending owner, which an event confirms or time removes. So
the requests of a burst on a new prefix stay together during its first prefill.

This module joins four parts: chunks and owners (`owner_table`), bits of slots (`slot_masks`), pending owners with their
deadlines (`pending_owners`) and incomplete snapshots (`staged_snapshot`). Long work is cut into steps, in `upkeep` or
in the snapshot's own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from plumage.directory.mirror.owner_table import SHARDS, OwnerChange, OwnerTable
from plumage.directory.mirror.pending_owners import Holds, PendingOwners
from plumage.directory.mirror.slot_masks import SlotMasks
from plumage.directory.mirror.staged_snapshot import PIECE, StagedSnapshot
from plumage.errors import ConfigurationError

__all__ = ["SHARDS", "Mirror", "OwnerChange"]

EXPIRED_AT_ONCE = 8  # decisions whose holds end at one step: about a millisecond

_NEAR = 0.01  # share of a chain's tokens

_NO_MATCH: tuple[Sequence[int], dict[int, tuple[int, int]]] = (), {}


class Mirror:
    """Chunks and their owners for one pool. capacity: most chunks kept. tokens_per_piece: the estimate for 256 bytes
    that no engine has counted yet."""

    def __init__(self, capacity: int = 2_000_000, tokens_per_piece: float = 64.0) -> None:
        if capacity < SHARDS:
            raise ConfigurationError(f"a mirror's capacity must be at least {SHARDS} chunks, got {capacity}")
        self.capacity = capacity
        self._table = OwnerTable(capacity, tokens_per_piece)
        self._masks = SlotMasks(self._unmatch)
        self._pending = PendingOwners()
        self._dropping: dict[int, StagedSnapshot] = {}  # by slot: empty snapshots that get many pending owners
        self._matched = _NO_MATCH  # the last match, until one of its owners may have changed

    def __len__(self) -> int:
        return len(self._table)

    @property
    def evicted(self) -> int:
        """Chunks dropped because the table was full."""
        return self._table.evicted

    @property
    def pending(self) -> int:
        """Number of (chunk, slot) pairs that are pending only."""
        return self._pending.count

    def match(self, chain: Sequence[int]) -> dict[int, tuple[int, int]]:
        """slot → (chunks, tokens) that it holds from the beginning of `chain`; a slot that holds none is absent."""
        found: dict[int, tuple[int, int]] = {}
        masks = self._masks
        expanded = masks.expanded
        for left, chunks, tokens in self._table.walk(chain, masks.alive):
            held = chunks, tokens
            for slot in expanded.get(left) or masks.expand(left):
                found[slot] = held
        self._matched = chain, found
        return found

    def _unmatch(self) -> None:
        self._matched = _NO_MATCH

    # Reports of replicas

    def apply(self, slot: int, changes: Iterable[OwnerChange]) -> None:
        """Apply changes of a replica's log, in their order. A repeated change has no effect."""
        bit = self._masks.of.get(slot) or self._masks.open(slot)
        holds = self._pending.of(slot)
        before = len(holds)
        self._matched = _NO_MATCH
        self._table.write(bit, changes, holds)
        self._pending.count -= before - len(holds)

    def stage_snapshot(self, slot: int) -> StagedSnapshot:
        """Begin a snapshot of the slot's replica. Until its `commit` the slot keeps its old chunks."""
        dropping = self._dropping.pop(slot, None)
        if dropping is not None:
            dropping.commit()  # the next snapshot may fail
        return StagedSnapshot(slot, self._table, self._masks, self._pending)

    def drop_confirmed(self, slot: int) -> None:
        """Remove the chunks that the slot's replica reported; its pending chunks stay. If these are many, the next
        `upkeep` does the work. Until then the slot keeps its old chunks, and its log must not be applied."""
        staged = self.stage_snapshot(slot)
        if len(self._pending.of(slot)) > PIECE:
            self._dropping[slot] = staged
        else:
            staged.commit()

    def forget(self, slot: int) -> None:
        """Remove everything about this slot: its replica left the pool."""
        dropping = self._dropping.pop(slot, None)
        if dropping is not None:
            dropping.abandon()
        self._masks.forget(slot)
        self._pending.forget(slot)  # their bit will be wiped

    # Upkeep

    def upkeep(self, now: float) -> Iterator[None]:
        """Do all delayed work, a millisecond per step. Run it about once a second, also while no server answers."""
        self.move_matched()
        yield from self.expire(now)
        yield from self._drop_confirmed()
        for _ in range(SHARDS):
            if not self.sweep():
                break
            yield

    def move_matched(self) -> None:
        """Mark recently matched chunks in the table, so that they are not dropped first."""
        self._table.move_matched()

    def _drop_confirmed(self) -> Iterator[None]:
        while self._dropping:
            slot, staged = next(iter(self._dropping.items()))
            yield from staged.carry()
            if self._dropping.get(slot) is staged:
                del self._dropping[slot]
                staged.commit()

    def sweep(self) -> bool:
        """Wipe closed bits out of one shard; True while there is more to do."""
        masks = self._masks
        if masks.dead:
            masks.wiped(self._table.sweep(masks.dead))
        return bool(masks.dead)

    # Pending owners

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, ttl: float) -> None:
        """`slot` was just sent this chain: it is a pending owner until `now + ttl`, and an owner once its engine
        reports the chunks. The directory need not know the slot. Call it right after `match` with the same chain
        object: the chunks that this found, up to the last confirmed one, are not looked up again."""
        pending = self._pending
        self._expire_some(now)
        bit = self._masks.of.get(slot) or self._masks.open(slot)
        holds = pending.open(slot)
        before = len(holds)
        held = self._table.expect(bit, chain, self._first_unconfirmed(chain, slot, holds), holds, now + ttl)
        pending.count += len(holds) - before
        if held:
            pending.expire_at(now + ttl, slot, held)
        while pending.over(self.capacity // 4):
            self._release(*pending.pop_expired())

    def _first_unconfirmed(self, chain: Sequence[int], slot: int, holds: Holds) -> int:
        """The number of chunks up to the last one that the slot's engine confirmed, by the last match."""
        matched, found = self._matched
        depth = found[slot][0] if matched is chain and slot in found else 0
        while depth and chain[depth - 1] in holds:
            depth -= 1
        return depth

    def count_pending(self, chain: Sequence[int], slot: int, tokens: float) -> None:
        """The engine of `slot` counted so many tokens in this chain. Corrects the pending chunks at its end, unless
        their estimate is within 1 %. Confirmed chunks keep their tokens."""
        bit, holds, first = self._masks.of.get(slot), self._pending.of(slot), len(chain)
        if not (bit and first and chain[-1] in holds):
            return
        if abs(self._table.tokens(chain[-1]) - tokens) <= _NEAR * tokens:
            return  # an engine's event comes soon, with the exact number
        while first and chain[first - 1] in holds:
            first -= 1
        self._matched = _NO_MATCH
        self._table.correct(bit, chain, first, tokens)

    def guess_tokens(self, per_piece: float) -> None:
        """Set the estimated tokens of 256 bytes in a chain of which no engine has counted a part."""
        self._table.tokens_per_piece = per_piece

    def drop_pending(self, chain: Sequence[int], slot: int) -> None:
        """Drops the pending chunks of a request on `slot` that failed."""
        holds = self._pending.of(slot)
        self._release(slot, [chunk for chunk in chain if chunk in holds])

    def expire(self, now: float) -> Iterator[None]:
        """Remove expired pending owners, those of some decisions per step."""
        while self._expire_some(now):
            yield

    def _expire_some(self, now: float) -> bool:
        """True while there are more."""
        pending = self._pending
        for _ in range(EXPIRED_AT_ONCE):
            if not pending.due(now):
                return False
            self._release(*pending.pop_expired())
        return pending.due(now)

    def _release(self, slot: int, chunks: Sequence[int]) -> None:
        if chunks:
            self._pending.end(slot, chunks)
            self._matched = _NO_MATCH
            self._table.remove(self._masks.of[slot], chunks)
