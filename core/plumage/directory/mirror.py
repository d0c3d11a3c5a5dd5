"""What a router knows of every replica's cache: which replica holds which chunk, in one table in its own memory.

Contract: `match(chain)` tells for each slot how many leading chunks of the chain it holds, and how many tokens these
are, without a round trip. The table is fed by the per-replica logs (`apply`), by whole snapshots (`refill`) and by the
router's own decisions (`hold_pending`: an owner by expectation, which an event confirms or time takes back, so that a
burst on a new prefix does not scatter during its first prefill).

Form: one integer a chunk, `owners << 24 | tokens`, owners being a bit mask. At one owner an entry costs 106 to 124
bytes, depending on how full Python's hash tables are: keys lose their four highest bits, because integers of 60 bits
take 32 bytes and longer ones 48. A chain is walked with one look-up and one `&` a chunk, or eight (`strides`).

- A bit is a *lane*, not a slot. A snapshot is filled into a fresh lane and takes the slot over when it is whole; a lane
  that lost its slot is invisible at once and is wiped later, a piece at a time (`sweep`).
- The table is cut into shards by the chunk's highest bits, so that growing, wiping and dropping stop the event loop
  for less than a millisecond, also at millions of entries.
- At its bound a shard drops its coldest entries. Coldness is the order of Python's dictionaries: what a request matched
  moves to the end, deepest chunk first, so that no chunk outlives its parent. While the table is less than half full
  nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice

from plumage.directory.pending import Holds, Pending
from plumage.directory.refill import Refill
from plumage.directory.strides import KEY, OWNERS, SHIFT, Strides
from plumage.errors import ConfigurationError

__all__ = ["SHARDS", "Mirror"]

TOKEN_BITS = 24
TOKENS = (1 << TOKEN_BITS) - 1
SHARDS = 64
SPARE = 64  # a shard at its bound makes room for this fraction at once
REMEMBERED = 64  # matched chains that wait for their move to the warm end
EXPANSIONS = 4096  # masks whose slots are kept expanded
LAPSES = 8  # decisions whose holds end at one step: about a millisecond

_NO_MATCH: tuple[Sequence[int], dict[int, tuple[int, int]]] = (), {}
_NO_HOLDS: Holds = {}
_SET = bytes(byte == ord("1") for byte in range(256))  # digits of a mask to false and true

Change = tuple[int, int, int]  # chunk, tier (0 = no longer held), tokens up to and with this chunk


class Mirror:
    """Chunks by owner for one pool. `capacity`: most chunks kept. `tokens_per_chunk`: the guess for chunks that no
    engine has counted yet, when nothing better is known."""

    def __init__(self, capacity: int = 2_000_000, tokens_per_chunk: float = 64.0) -> None:
        if capacity < SHARDS:
            raise ConfigurationError(f"a mirror's capacity must be at least {SHARDS} chunks, got {capacity}")
        self.capacity = capacity
        self.evicted = 0
        self._share = capacity // SHARDS
        self._tokens_per_chunk = tokens_per_chunk
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._gets = [shard.get for shard in self._shards]
        self._strides = Strides(self._shards)
        self._lanes: dict[int, int] = {}  # slot -> lane
        self._slots: list[int] = []  # of each lane; of a closed one, the last
        self._alive = 0  # lanes that have a slot, shifted like the owners of an entry
        self._filling = 0  # lanes of snapshots that are not whole yet
        self._dead = 0  # lanes that lost their slot and are being wiped
        self._sweeping = 0  # lanes of the pass under way; it ends where it began
        self._sweep_at = 0
        self._expanded: dict[int, tuple[int, ...]] = {}
        self._touched: dict[int, tuple[Sequence[int], int]] = {}
        self._pending = Pending()
        self._carrying: dict[int, Refill] = {}  # by slot: snapshots that take over what is expected just now
        self._matched = _NO_MATCH  # the last one, until something is written

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    @property
    def pending(self) -> int:
        """(chunk, slot) pairs that are owners by expectation only."""
        return self._pending.count

    # Reading

    def match(self, chain: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Leading (chunks, tokens) of `chain` that each slot holds; slots that hold none are absent."""
        found: dict[int, tuple[int, int]] = {}
        expanded = self._expanded
        for lanes, chunks, tokens in self._walk(chain):
            held = chunks, tokens
            for slot in expanded.get(lanes) or self._expand(lanes):
                found[slot] = held
        self._matched = chain, found
        return found

    def _walk(self, chain: Sequence[int]) -> list[tuple[int, int, int]]:
        """Owners that leave the chain together: (their lanes, chunks they hold, tokens they hold), shortest first."""
        gets, alive = self._gets, self._alive
        steps: list[tuple[int, int, int]] = []
        if not alive:
            return steps
        strides = self._strides
        depth, last, alive = strides.walk(chain, alive)
        swept = depth
        for chunk in islice(chain, depth, None):
            value = gets[chunk >> SHIFT](chunk & KEY)
            if value is None:
                break
            both = value & alive
            if both != alive:
                if depth:
                    steps.append((alive ^ both, depth, last & TOKENS))
                alive = both
                if not both:
                    break
            last = value
            depth += 1
        if depth:
            if depth >= swept + strides.length:
                strides.remember(chain, swept, depth)
            if alive:
                steps.append((alive, depth, last & TOKENS))
            self._touch(chain, depth)
        return steps

    def _expand(self, lanes: int) -> tuple[int, ...]:
        """The slots of a mask of lanes; the same few masks come again and again."""
        slots = self._expanded.get(lanes)
        if slots is None:
            if len(self._expanded) >= EXPANSIONS:
                self._expanded.clear()
            flags = bin(lanes >> TOKEN_BITS)[:1:-1].encode()
            slots = tuple(compress(self._slots, flags.translate(_SET)))
            self._expanded[lanes] = slots
        return slots

    # Coldness

    def _touch(self, chain: Sequence[int], depth: int) -> None:
        """Remember a matched chain; a hot one that is matched again before the next `settle` moves only once."""
        self._touched[chain[depth - 1]] = (chain, depth)
        if len(self._touched) >= REMEMBERED:
            self.settle()

    def settle(self) -> None:
        """Move what was matched to the warm end of its shard."""
        touched, self._touched = self._touched, {}
        if len(self._shards[0]) * 2 < self._share:
            return
        shards = self._shards
        for chain, depth in touched.values():
            for chunk in chain[depth - 1 :: -1]:
                shard, key = shards[chunk >> SHIFT], chunk & KEY
                value = shard.pop(key, None)
                if value is not None:
                    shard[key] = value

    def _make_room(self, shard: dict[int, int]) -> None:
        """Drop the coldest of a shard, several at once: finding the first of a dictionary costs a scan of what was
        deleted before it."""
        self.settle()
        victims = list(islice(shard, max(1, len(shard) - self._share + self._share // SPARE)))
        for key in victims:
            del shard[key]
        self._strides.changed(victims)
        self.evicted += len(victims)

    # Writing

    def apply(self, slot: int, changes: Iterable[Change]) -> None:
        """What a replica's log says, in its order. Applying the same change twice changes nothing."""
        lane = self._lanes.get(slot)
        if lane is None:
            lane = self._open(slot)
        holds = self._pending.of(slot)
        before = len(holds)
        self._write(lane, changes, holds)
        self._pending.count -= before - len(holds)

    def _write(self, lane: int, changes: Iterable[Change], holds: Holds = _NO_HOLDS) -> None:
        """An engine's word ends a hold; a removal does not: the engine dropped what the hold expects it to compute."""
        self._matched = _NO_MATCH
        shards, share, bit = self._shards, self._share, 1 << lane + TOKEN_BITS
        strides, watched = self._strides, self._strides.watched
        for chunk, tier, tokens in changes:
            if chunk in holds:
                if not tier:
                    continue
                del holds[chunk]
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            old, count = shard.get(key), bit | (tokens if tokens < TOKENS else TOKENS)
            if old is None:
                if tier:
                    shard[key] = count
                    if len(shard) > share:
                        self._make_room(shard)
                continue
            new = old & OWNERS | count if tier else old & ~bit
            if new == old:
                continue
            if new > TOKENS:
                shard[key] = new
            else:
                del shard[key]
            if key in watched:
                strides.changed((key,))

    def refill(self, slot: int) -> Refill:
        """A snapshot of the slot's replica, given in pieces; until `commit` the slot keeps what it had."""
        lane = self._free_lane()
        self._filling |= 1 << lane + TOKEN_BITS
        return Refill(self, slot, lane, 1 << lane + TOKEN_BITS)

    def forget(self, slot: int) -> None:
        """Nothing is known of this slot any more: its replica is gone, or its agent is silent."""
        lane = self._lanes.pop(slot, None)
        if lane is not None:
            self._close(lane)
        if slot in self._carrying:
            self._carrying[slot].abandon()
        self._pending.forget(slot)  # the lane that they stand in is on its way out

    # Lanes

    def _free_lane(self) -> int:
        free = ~((self._alive | self._filling | self._dead) >> TOKEN_BITS)
        return (free & -free).bit_length() - 1

    def _open(self, slot: int) -> int:
        lane = self._free_lane()
        self._give(lane, slot)
        return lane

    def _give(self, lane: int, slot: int) -> None:
        self._lanes[slot] = lane
        self._slots += [slot] * (lane + 1 - len(self._slots))
        self._slots[lane] = slot
        self._alive |= 1 << lane + TOKEN_BITS
        self._expanded.clear()

    def _close(self, lane: int) -> None:
        self._matched = _NO_MATCH
        bit = 1 << lane + TOKEN_BITS
        self._alive &= ~bit
        self._filling &= ~bit
        self._dead |= bit
        self._expanded.clear()

    def _replace(self, slot: int, lane: int, reborn: bool) -> None:
        """`lane` is whole: the slot is read from it."""
        old = self._lanes.get(slot)
        if reborn:
            self._pending.forget(slot)
        if old is not None:
            self._close(old)
        self._filling &= ~(1 << lane + TOKEN_BITS)
        self._give(lane, slot)

    def upkeep(self, now: float) -> Iterator[None]:
        """All that waits for a quiet moment, a step of a millisecond at a time. To be gone through about each second,
        also while no server answers: replicas come and go all the same."""
        self.settle()
        yield from self.lapse(now)
        for _ in range(SHARDS):
            if not self.sweep():
                break
            yield

    def sweep(self) -> bool:
        """Wipe closed lanes out of one shard; True while there is more to do."""
        if not self._dead:
            return False
        if not self._sweeping:
            self._sweeping, self._sweep_at = self._dead, 0
        self._wipe(self._shards[self._sweep_at], self._sweeping)
        self._sweep_at += 1
        if self._sweep_at == SHARDS:
            self._dead &= ~self._sweeping
            self._sweeping = 0
        return bool(self._dead)

    def _wipe(self, shard: dict[int, int], lanes: int) -> None:
        theirs = [item for item in shard.items() if item[1] & lanes]
        for key, value in theirs:
            left = value & ~lanes
            if left > TOKENS:
                shard[key] = left
            else:
                del shard[key]
        self._strides.changed([key for key, _ in theirs])

    # Pending owners

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, ttl: float) -> None:
        """`slot` was just sent this chain and will hold it: count it as an owner until `now + ttl`, or for good once
        its engine says so. Works for a slot that the directory has never heard of. Call it right after `match` with the
        same chain object: what that found, up to the last chunk that an engine told of, is not walked again."""
        pending = self._pending
        self._lapse_some(now)
        lane = self._lanes.get(slot)
        if lane is None:
            lane = self._open(slot)
        holds = pending.open(slot)
        held = self._hold_each(chain, self._first_hoped(chain, slot, holds), lane, holds, now + ttl)
        if held:
            pending.lapse_at(now + ttl, slot, held)
            if slot in self._carrying:
                self._carrying[slot].expect(held)
        while pending.over(self.capacity // 4):
            self._release(*pending.lapsed())

    def _first_hoped(self, chain: Sequence[int], slot: int, holds: Holds) -> int:
        """Behind the last chunk that the slot's engine has confirmed, as far as the last match tells."""
        matched, found = self._matched
        depth = found[slot][0] if matched is chain and slot in found else 0
        while depth and chain[depth - 1] in holds:
            depth -= 1
        return depth

    def _hold_each(self, chain: Sequence[int], first: int, lane: int, holds: Holds, until: float) -> Sequence[int]:
        """Those of `chain[first:]` that are only expected. Mostly nobody knows them: no engine has counted their
        tokens, and the chain is taken to go on as it began."""
        shards, share, bit = self._shards, self._share, 1 << lane + TOKEN_BITS
        tokens = self._gets[chain[first - 1] >> SHIFT](chain[first - 1] & KEY, 0) & TOKENS if first else 0
        expected, before = chain[first:], len(holds)
        step = self._step(first, tokens)
        for chunk in expected:
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            if key in shard or tokens + step > TOKENS:
                new = expected[: expected.index(chunk)]
                expected = [*new, *self._hold_known(chain, first + len(new), bit, holds, tokens)]
                holds.update(dict.fromkeys(expected, until))
                break
            tokens += step
            shard[key] = bit | tokens
            holds[chunk] = until
            if len(shard) > share:
                self._make_room(shard)
        self._pending.count += len(holds) - before
        return expected

    def _hold_known(
        self, chain: Sequence[int], first: int, bit: int, holds: dict[int, float], tokens: int
    ) -> Iterable[int]:
        """The same where some have owners already. `tokens`: up to the first of them."""
        shards, step = self._shards, 0
        for depth, chunk in enumerate(islice(chain, first, None), first):
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key)
            if value is None:
                step = step or self._step(depth, tokens)
                tokens = min(tokens + step, TOKENS)
                shard[key] = bit | tokens
                if len(shard) > self._share:
                    self._make_room(shard)
            else:
                tokens, step = value & TOKENS, 0
                if not value & bit:
                    shard[key] = value | bit
                    self._strides.changed((key,))
                elif chunk not in holds:  # an engine said so: nothing to expect
                    continue
            yield chunk

    def _step(self, depth: int, tokens: int) -> int:
        """Tokens of a chunk that nobody has counted, behind `depth` others of `tokens` tokens."""
        return int((tokens / depth if tokens else self._tokens_per_chunk) + 0.5)

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
            self._write(self._lanes[slot], [(chunk, 0, 0) for chunk in chunks])
            if slot in self._carrying:
                self._carrying[slot].release(chunks)
