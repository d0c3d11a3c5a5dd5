"""Chunks with their owners and token counts, in a bounded table that drops its coldest.

Form: one integer a chunk, `owners << 24 | tokens`, owners being a mask with a bit for each lane (`lanes`); here a lane
is always its bit, as it stands in an entry. At one owner an entry costs 106 to 124 bytes, depending on how full
Python's hash tables are: keys lose their four highest bits, because integers of 60 bits take 32 bytes and longer ones
48. A chain is walked with one look-up and one `&` a chunk, or eight (`strides`).

- The table is cut into shards by the chunk's highest bits, so that growing, wiping and dropping stop the event loop
  for less than a millisecond, also at millions of entries.
- At its bound a shard drops its coldest entries. Coldness is the order of Python's dictionaries: what a request matched
  moves to the end, deepest chunk first, so that no chunk outlives its parent. While the table is less than half full
  nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from plumage.directory.pending import NO_HOLDS, Holds
from plumage.directory.strides import KEY, OWNERS, SHIFT, Strides

__all__ = ["SHARDS", "TOKEN_BITS", "Change", "Table"]

TOKEN_BITS = 24
TOKENS = (1 << TOKEN_BITS) - 1
SHARDS = 64
SPARE = 64  # a shard at its bound makes room for this fraction at once
REMEMBERED = 64  # matched chains that wait for their move to the warm end

Change = tuple[int, int, int]  # chunk, tier (0 = no longer held), tokens up to and with this chunk


class Table:
    """At most `capacity` chunks; `evicted`: how many were dropped for it. `tokens_per_chunk`: the guess for chunks
    that no engine has counted yet, when nothing better is known; it may be set anew."""

    def __init__(self, capacity: int, tokens_per_chunk: float) -> None:
        self.evicted = 0
        self.tokens_per_chunk = tokens_per_chunk
        self._share = capacity // SHARDS
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._gets = [shard.get for shard in self._shards]
        self._strides = Strides(self._shards)
        self._touched: dict[int, tuple[Sequence[int], int]] = {}
        self._sweeping = 0  # lanes of the pass under way; it ends where it began
        self._sweep_at = 0

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    # Reading

    def walk(self, chain: Sequence[int], alive: int) -> list[tuple[int, int, int]]:
        """Owners among `alive` that leave the chain together: (their lanes, chunks they hold, tokens they hold),
        shortest first."""
        gets = self._gets
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

    def write(self, lane: int, changes: Iterable[Change], holds: Holds = NO_HOLDS) -> None:
        """What is said of a lane. An engine's word ends a hold; a removal does not: the engine dropped what the hold
        expects it to compute."""
        shards, share = self._shards, self._share
        strides, watched = self._strides, self._strides.watched
        for chunk, tier, tokens in changes:
            if chunk in holds:
                if not tier:
                    continue
                del holds[chunk]
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            old, count = shard.get(key), lane | (tokens if tokens < TOKENS else TOKENS)
            if old is None:
                if tier:
                    shard[key] = count
                    if len(shard) > share:
                        self._make_room(shard)
                continue
            new = old & OWNERS | count if tier else old & ~lane
            if new == old:
                continue
            if new > TOKENS:
                shard[key] = new
            else:
                del shard[key]
            if key in watched:
                strides.changed((key,))

    def remove(self, lane: int, chunks: Iterable[int]) -> None:
        """The lane does not hold these any more."""
        self.write(lane, [(chunk, 0, 0) for chunk in chunks])

    def join(self, lane: int, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Make the lane one more owner of those of `chunks` that have any: (those where it is new, those where it was
        one before)."""
        new, known = [], []
        shards = self._shards
        for chunk in chunks:
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key, 0)
            if value & lane:
                known.append(chunk)
            elif value:
                shard[key] = value | lane
                new.append(chunk)
        self._strides.changed([chunk & KEY for chunk in new])
        return new, known

    def sweep(self, lanes: int) -> int:
        """Wipe lanes out of one shard, at each call of the next. Returns those that are gone from all shards: 0 until
        the pass is at its end; lanes that come meanwhile wait for the next pass."""
        if not self._sweeping:
            self._sweeping, self._sweep_at = lanes, 0
        self._wipe(self._shards[self._sweep_at], self._sweeping)
        self._sweep_at += 1
        if self._sweep_at < SHARDS:
            return 0
        swept, self._sweeping = self._sweeping, 0
        return swept

    def _wipe(self, shard: dict[int, int], lanes: int) -> None:
        theirs = [item for item in shard.items() if item[1] & lanes]
        for key, value in theirs:
            left = value & ~lanes
            if left > TOKENS:
                shard[key] = left
            else:
                del shard[key]
        self._strides.changed([key for key, _ in theirs])

    # Expecting

    def expect(self, lane: int, chain: Sequence[int], first: int, holds: Holds, until: float) -> Sequence[int]:
        """Make the lane an owner of `chain[first:]`, and note in `holds` what of it is only expected: those are
        returned. Mostly nobody knows them: no engine has counted their tokens, and the chain is taken to go on as it
        began."""
        shards, share = self._shards, self._share
        tokens = self._gets[chain[first - 1] >> SHIFT](chain[first - 1] & KEY, 0) & TOKENS if first else 0
        expected = chain[first:]
        step = self._step(first, tokens)
        for chunk in expected:
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            if key in shard or tokens + step > TOKENS:
                new = expected[: expected.index(chunk)]
                expected = [*new, *self._expect_known(lane, chain, first + len(new), holds, tokens)]
                holds.update(dict.fromkeys(expected, until))
                break
            tokens += step
            shard[key] = lane | tokens
            holds[chunk] = until
            if len(shard) > share:
                self._make_room(shard)
        return expected

    def correct(self, lane: int, chain: Sequence[int], first: int, tokens: float) -> None:
        """The whole chain has so many tokens: those that are expected of this lane alone, behind the `first` chunks,
        share what is left."""
        shards = self._shards
        known = self._gets[chain[first - 1] >> SHIFT](chain[first - 1] & KEY, 0) & TOKENS if first else 0
        step = max(1.0, (tokens - known) / (len(chain) - first))
        for place, chunk in enumerate(islice(chain, first, None), 1):
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key, 0)
            if value & OWNERS == lane:
                shard[key] = lane | min(int(known + step * place + 0.5), TOKENS)
        self._strides.changed([chunk & KEY for chunk in islice(chain, first, None)])

    def _expect_known(self, lane: int, chain: Sequence[int], first: int, holds: Holds, tokens: int) -> Iterator[int]:
        """The same where some have owners already. `tokens`: up to the first of them."""
        shards, step = self._shards, 0
        for depth, chunk in enumerate(islice(chain, first, None), first):
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key)
            if value is None:
                step = step or self._step(depth, tokens)
                tokens = min(tokens + step, TOKENS)
                shard[key] = lane | tokens
                if len(shard) > self._share:
                    self._make_room(shard)
            else:
                tokens, step = value & TOKENS, 0
                if not value & lane:
                    shard[key] = value | lane
                    self._strides.changed((key,))
                elif chunk not in holds:  # an engine said so: nothing to expect
                    continue
            yield chunk

    def _step(self, depth: int, tokens: int) -> int:
        """Tokens of a chunk that nobody has counted, behind `depth` others of `tokens` tokens."""
        return int((tokens / depth if tokens else self.tokens_per_chunk) + 0.5)
