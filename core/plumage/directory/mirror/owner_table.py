"""Chunks with their owners and token counts, in a bounded table that drops its coldest entries.

Form: one integer per chunk, `owners << 24 | tokens`. `owners` is a mask with one bit per owner (`slot_masks`). In this
module a bit is the mask with that one bit set, as in an entry. With one owner an entry takes 106 to 124 bytes,
depending on the load of Python's hash tables. Keys lose their four highest bits, because integers up to 60 bits take 32
bytes and longer ones 48. A chain costs one look-up and one `&` per chunk, or per eight chunks (`match_cache`).

- The chunk's highest bits choose its shard. Growing, wiping and dropping a shard stop the event loop for less than a
  millisecond, also with millions of entries.
- A full shard drops its coldest entries. Coldness is the order of Python's dictionaries: matched chunks move to the
  end, the deepest first, so no chunk outlives its parent. Nothing moves while the table is less than half full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

from plumage.directory.mirror.match_cache import KEY, OWNERS, SHIFT, MatchCache
from plumage.directory.mirror.pending_owners import NO_HOLDS, Holds
from plumage.hashing.chunks import ENDS, PIECE

__all__ = ["SHARDS", "TOKEN_BITS", "OwnerChange", "OwnerTable"]

TOKEN_BITS = 24
TOKENS = (1 << TOKEN_BITS) - 1
SHARDS = 64
SPARE = 64  # a full shard drops this fraction at once
REMEMBERED = 64  # matched chains that wait for `move_matched`

_PIECES = [(end - start) // PIECE for start, end in pairwise(ENDS)]  # of each chunk

OwnerChange = tuple[int, int, int]  # chunk, tier (0 = no longer held), tokens up to and with this chunk


class OwnerTable:
    """At most `capacity` chunks; `evicted`: how many were dropped when it was full. `tokens_per_piece`: the estimate
    for 256 bytes that no engine has counted yet; it may be changed."""

    def __init__(self, capacity: int, tokens_per_piece: float) -> None:
        self.evicted = 0
        self.tokens_per_piece = tokens_per_piece
        self._share = capacity // SHARDS
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._gets = [shard.get for shard in self._shards]
        self._matches = MatchCache(self._shards)
        self._touched: dict[int, tuple[Sequence[int], int]] = {}
        self._sweeping = 0  # mask of the pass in progress
        self._sweep_at = 0

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    # Reading

    def walk(self, chain: Sequence[int], alive: int) -> list[tuple[int, int, int]]:
        """Owners among `alive` that leave the chain together: (their bits, chunks they hold, tokens they hold),
        shortest first."""
        gets = self._gets
        steps: list[tuple[int, int, int]] = []
        if not alive:
            return steps
        matches = self._matches
        depth, last, alive = matches.walk(chain, alive)
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
            if depth >= swept + matches.length:
                matches.remember(chain, swept, depth)
            if alive:
                steps.append((alive, depth, last & TOKENS))
            self._touch(chain, depth)
        return steps

    def tokens(self, chunk: int) -> int:
        """Tokens up to and with this chunk; 0 if it is unknown."""
        return self._gets[chunk >> SHIFT](chunk & KEY, 0) & TOKENS

    # Coldness

    def _touch(self, chain: Sequence[int], depth: int) -> None:
        """Remember a matched chain. A chain that is matched again before the next `move_matched` moves only once."""
        self._touched[chain[depth - 1]] = (chain, depth)
        if len(self._touched) >= REMEMBERED:
            self.move_matched()

    def move_matched(self) -> None:
        """Move matched chunks to the warm end of their shards."""
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
        """Drop the coldest entries of a shard, several at once: to find the first key of a dictionary, Python scans all
        deleted entries before it."""
        self.move_matched()
        coldest = list(islice(shard, max(1, len(shard) - self._share + self._share // SPARE)))
        for key in coldest:
            del shard[key]
        self._matches.changed(coldest)
        self.evicted += len(coldest)

    # Writing

    def write(self, bit: int, changes: Iterable[OwnerChange], holds: Holds = NO_HOLDS) -> None:
        """Write changes of one bit. A reported chunk is no longer pending. A removal leaves it pending: the engine
        dropped a chunk that the pending request will compute again."""
        shards, share = self._shards, self._share
        matches, watched = self._matches, self._matches.watched
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
                matches.changed((key,))

    def remove(self, bit: int, chunks: Iterable[int]) -> None:
        """Remove the bit from these chunks."""
        self.write(bit, [(chunk, 0, 0) for chunk in chunks])

    def join(self, bit: int, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Add the bit to those of `chunks` that have an owner: (chunks where it is new, chunks that had it before)."""
        new, known = [], []
        shards = self._shards
        for chunk in chunks:
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key, 0)
            if value & bit:
                known.append(chunk)
            elif value:
                shard[key] = value | bit
                new.append(chunk)
        self._matches.changed([chunk & KEY for chunk in new])
        return new, known

    def sweep(self, bits: int) -> int:
        """Wipe bits out of one shard; each call takes the next shard. Returns the bits that no shard has any more: 0
        until the pass ends. Bits that are closed meanwhile wait for the next pass."""
        if not self._sweeping:
            self._sweeping, self._sweep_at = bits, 0
        self._wipe(self._shards[self._sweep_at], self._sweeping)
        self._sweep_at += 1
        if self._sweep_at < SHARDS:
            return 0
        swept, self._sweeping = self._sweeping, 0
        return swept

    def _wipe(self, shard: dict[int, int], bits: int) -> None:
        theirs = [item for item in shard.items() if item[1] & bits]
        for key, value in theirs:
            left = value & ~bits
            if left > TOKENS:
                shard[key] = left
            else:
                del shard[key]
        self._matches.changed([key for key, _ in theirs])

    # Pending owners

    def expect(self, bit: int, chain: Sequence[int], first: int, holds: Holds, until: float) -> Sequence[int]:
        """Add the bit to `chain[first:]`. Returns the chunks that are pending, and stores their deadline in `holds`.
        Most of them are new: no engine counted their tokens, so they get the average of the chain's beginning."""
        shards, share = self._shards, self._share
        tokens = self.tokens(chain[first - 1]) if first else 0
        expected = chain[first:]
        step = self._step(first, tokens)
        at = first  # counted here: a `zip` of both lists makes a tuple for each chunk
        for chunk in expected:
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            added = step * _PIECES[at]
            if key in shard or tokens + added > TOKENS:
                new = expected[: at - first]
                expected = [*new, *self._expect_known(bit, chain, first + len(new), holds, tokens)]
                holds.update(dict.fromkeys(expected, until))
                break
            at += 1
            tokens += added
            shard[key] = bit | tokens
            holds[chunk] = until
            if len(shard) > share:
                self._make_room(shard)
        return expected

    def correct(self, bit: int, chain: Sequence[int], first: int, tokens: float) -> None:
        """Correct token counts: the whole chain has `tokens` tokens. Chunks after `first` that only this bit owns share
        the rest."""
        shards = self._shards
        known = self.tokens(chain[first - 1]) if first else 0
        before = ENDS[first]
        step = max(1.0 / PIECE, (tokens - known) / (ENDS[len(chain)] - before))
        for end, chunk in zip(ENDS[first + 1 : len(chain) + 1], islice(chain, first, None), strict=True):
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key, 0)
            if value & OWNERS == bit:
                shard[key] = bit | min(int(known + step * (end - before) + 0.5), TOKENS)
        self._matches.changed([chunk & KEY for chunk in islice(chain, first, None)])

    def _expect_known(self, bit: int, chain: Sequence[int], first: int, holds: Holds, tokens: int) -> Iterator[int]:
        """The same if some chunks have owners already. tokens: up to the first of them."""
        shards, step = self._shards, 0
        for depth, chunk in enumerate(islice(chain, first, None), first):
            shard, key = shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key)
            if value is None:
                step = step or self._step(depth, tokens)
                tokens = min(tokens + step * _PIECES[depth], TOKENS)
                shard[key] = bit | tokens
                if len(shard) > self._share:
                    self._make_room(shard)
            else:
                tokens, step = value & TOKENS, 0
                if not value & bit:
                    shard[key] = value | bit
                    self._matches.changed((key,))
                elif chunk not in holds:  # an engine reported it: it is not pending
                    continue
            yield chunk

    def _step(self, depth: int, tokens: int) -> int:
        """Estimated tokens of an uncounted piece, behind `depth` chunks with `tokens` tokens."""
        return int((tokens * PIECE / ENDS[depth] if tokens else self.tokens_per_piece) + 0.5)
