"""The chunks of one replica, as its agent publishes them: the source of snapshots, counts and digests.

`record(changes)` returns packed records of the changes that had an effect. A chunk that is added twice, or deleted
without being held, makes no record. So readers can count by the records alone. Pure.

The digest is the sum of the chunks held, modulo 2⁶⁴. Chunks are uniform hashes, so the sum needs no mixing. It does not
depend on the order, and each change updates it in constant time.

At `capacity` a new chunk is taken only if a colder one can be dropped. Colder means, first, fewer uses: `rank` sets
them, for each chunk those of the longest prefix through it. Among equals the deeper chunk is colder: a chain is read
from its root, so what is left of it stays useful. The coldest chunk is taken from a sample that walks over all chunks;
one walk gives a sixteenth of them. Chunks that are left out are remembered, up to a bound. They return when there is
room, or when `rank` makes them hot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from plumage.directory.schema import BUCKET_SHIFT, BUCKETS, DIGEST_MASK, MAX_TOKENS, RECORD, Change, Op, pack_bucket

__all__ = ["HeldChunks", "capacity_within"]

SAMPLE = 1024  # chunks that are read to find the coldest 64 of them
RANKED = 2048  # chunks that are ranked or dropped in one step: ten milliseconds if each replaces another
LEFT_OUT = 65_536  # most chunks left out that are remembered: about 200 bytes each
ENTRY_BYTES = 40  # most of a server's memory for one chunk of one replica, log included; half of it was measured
SERVER_BYTES = 8 << 20  # for the server itself, work in flight, learned tables
MAX_CHUNKS = 1_000_000  # of one replica: what an agent's and a router's memory allow

_ADD, _MOVE, _REMOVE = int(Op.ADD), int(Op.MOVE), int(Op.REMOVE)


def capacity_within(memory: int, replicas: int) -> int:
    """Chunks that each of `replicas` may publish to a server of `memory` bytes. A quarter is left for hotness and
    peaks."""
    return max(1, min(MAX_CHUNKS, (memory - SERVER_BYTES) * 3 // 4 // ENTRY_BYTES // max(1, replicas)))


class HeldChunks:
    """The chunks of one replica with tier and tokens.

    capacity: most chunks. count, digest: of the chunks held. refused: chunks not taken because it was full. displaced:
    chunks dropped for hotter ones. Chunks left out cost cache hits, never responses."""

    def __init__(self, capacity: int = MAX_CHUNKS) -> None:
        self.capacity = capacity
        self.refused = 0
        self.displaced = 0
        self.count = 0
        self.digest = 0
        self._buckets: list[dict[int, int]] = [{} for _ in range(BUCKETS)]  # chunk -> tier << 24 | tokens
        self._uses: Mapping[int, int] = {}
        self._left_out: OrderedDict[int, int] = OrderedDict()
        self._coldest: list[tuple[int, int, int]] = []  # of the last sample, coldest last: (uses, -tokens, chunk)
        self._sample_start = (0, 0)  # of the next sample: bucket, place in it
        self._records = bytearray()

    @property
    def full(self) -> bool:
        """A new chunk is taken only for a colder one."""
        return self.count >= self.capacity

    @property
    def left_out(self) -> int:
        """How often a chunk was refused or displaced."""
        return self.refused + self.displaced

    def record(self, changes: Iterable[Change]) -> bytes:
        """Apply the changes; returns the packed records of those that had an effect, in their order."""
        records = self._records = bytearray()
        for chunk, tier, tokens in changes:
            bucket = self._buckets[chunk >> BUCKET_SHIFT]
            old, word = bucket.get(chunk), tier << 24 | min(tokens, MAX_TOKENS)
            if tier:
                op = self._add(bucket, chunk, old, word)
            elif old is None:
                op = None
                if self._left_out:
                    self._left_out.pop(chunk, None)
            else:
                op, word = self._remove(bucket, chunk), 0
            if op is not None:
                records += RECORD.pack(chunk, op << 28 | word)
        if self._left_out:
            self._restore_left_out()
        return bytes(records)

    def rank(self, uses: Mapping[int, int]) -> Iterator[bytes]:
        """Set how often chunks were used, hottest first. Hotter chunks that were left out replace colder ones.

        Yields the records of these changes, for `RANKED` chunks of `uses` at a time. Other methods may be called in
        between."""
        self._uses = uses
        self._coldest = []
        chunks = iter(uses)
        while some := list(islice(chunks, RANKED)):
            yield self._restore_hot(some)

    def resize(self, capacity: int) -> Iterator[bytes]:
        """Set the capacity. Too many chunks: the coldest are dropped. More room: chunks that were left out return.

        Yields the records of these changes, `RANKED` of them at a time. Other methods may be called in between."""
        while self.capacity < capacity:
            step = max(self.capacity, self.count) + RANKED if self._left_out else capacity
            self.capacity = min(capacity, step)
            yield self.record(())
        self.capacity = capacity
        while self.count > capacity:
            yield self._drop_surplus()

    def _drop_surplus(self) -> bytes:
        records = self._records = bytearray()
        for _ in range(min(RANKED, self.count - self.capacity)):
            if self._find_coldest() is not None:
                self._drop_coldest()
        return bytes(records)

    def _restore_hot(self, chunks: Iterable[int]) -> bytes:
        hot = [(chunk, self._left_out[chunk]) for chunk in chunks if chunk in self._left_out]
        hot.sort(key=lambda held: _hotness(self._uses, *held), reverse=True)
        return self.record([Change(chunk, word >> 24, word & MAX_TOKENS) for chunk, word in hot]) if hot else b""

    def _add(self, bucket: dict[int, int], chunk: int, old: int | None, word: int) -> int | None:
        if old == word:
            return None
        if old is None:
            if self.count >= self.capacity and not self._make_room(chunk, word):
                self.refused += 1
                self._leave_out(chunk, word)
                return None
            if self._left_out:
                self._left_out.pop(chunk, None)
            self.count += 1
            self.digest = self.digest + chunk & DIGEST_MASK
        bucket[chunk] = word
        return _ADD if old is None else _MOVE

    def _remove(self, bucket: dict[int, int], chunk: int) -> int:
        del bucket[chunk]
        self.count -= 1
        self.digest = self.digest - chunk & DIGEST_MASK
        return _REMOVE

    def clear(self) -> None:
        """Forgets all chunks: the engine holds none any more."""
        self.count = self.digest = 0
        self._buckets = [{} for _ in range(BUCKETS)]
        self._left_out.clear()
        self._coldest = []

    def bucket(self, number: int, seq: int) -> bytes:
        """Returns one packed bucket of the snapshot, valid after log entry `seq`."""
        held = self._buckets[number]
        return pack_bucket(seq, map(RECORD.pack, held.keys(), held.values()))

    # At capacity

    def _make_room(self, chunk: int, word: int) -> bool:
        """Drop the coldest chunk if it is colder than `chunk`; False if it is not."""
        coldest = self._find_coldest()
        if coldest is None or _hotness(self._uses, chunk, word) <= coldest[:2]:
            return False
        self._drop_coldest()
        return True

    def _drop_coldest(self) -> None:
        """Drop the chunk that `_find_coldest` just returned."""
        _, _, chunk = self._coldest.pop()
        bucket = self._buckets[chunk >> BUCKET_SHIFT]
        self._leave_out(chunk, bucket[chunk])
        self._records += RECORD.pack(chunk, self._remove(bucket, chunk) << 28)
        self.displaced += 1

    def _find_coldest(self) -> tuple[int, int, int] | None:
        """The coldest chunk of the sample that did not change since; takes a new sample if none is left."""
        for sampled in (False, True):
            if sampled:
                self._take_sample()
            while self._coldest:
                uses, depth, chunk = self._coldest[-1]
                word = self._buckets[chunk >> BUCKET_SHIFT].get(chunk)
                if word is not None and _hotness(self._uses, chunk, word) == (uses, depth):
                    return self._coldest[-1]
                self._coldest.pop()
        return None

    def _take_sample(self) -> None:
        """Read the next `SAMPLE` chunks held, and keep the coldest sixteenth of them."""
        seen: list[tuple[int, int, int]] = []
        bucket, place = self._sample_start
        for _ in range(BUCKETS + 1):
            held = self._buckets[bucket]
            part = list(islice(held.items(), place, place + SAMPLE - len(seen)))
            seen += [(*_hotness(self._uses, chunk, word), chunk) for chunk, word in part]
            place += len(part)
            if len(seen) >= min(SAMPLE, self.count):
                break
            bucket, place = (bucket + 1) % BUCKETS, 0
        self._sample_start = bucket, place
        seen.sort()
        self._coldest = seen[: -(-len(seen) // 16)][::-1]

    def _leave_out(self, chunk: int, word: int) -> None:
        self._left_out[chunk] = word
        self._left_out.move_to_end(chunk)
        if len(self._left_out) > LEFT_OUT:
            self._left_out.popitem(last=False)

    def _restore_left_out(self) -> None:
        """Take chunks that were left out while there is room, oldest first: of a chain these are the upper ones."""
        while self._left_out and self.count < self.capacity:
            chunk, word = self._left_out.popitem(last=False)
            op = self._add(self._buckets[chunk >> BUCKET_SHIFT], chunk, None, word)
            if op is not None:
                self._records += RECORD.pack(chunk, op << 28 | word)


def _hotness(uses: Mapping[int, int], chunk: int, word: int) -> tuple[int, int]:
    """Sorts colder chunks before hotter ones."""
    return uses.get(chunk, 0), -(word & MAX_TOKENS)
