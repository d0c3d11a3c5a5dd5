"""What one replica holds, as its agent's writer keeps it: the source of snapshots, counts and digests.

Contract: `record(changes)` turns the agent's statements into packed records of what really changed: saying twice that a
chunk is held, or dropping what was not held, yields nothing, so readers can count by the records alone. Pure.

The digest is the sum of the chunks held, modulo 2⁶⁴: chunks are uniform hashes, so the sum needs no mixing, does not
depend on the order, and follows each change in constant time.

At `capacity` the coldest chunk goes when a hotter one wants in. Colder is, first, what was used less (`rank` tells the
uses, those of a prefix for every chunk on the way to its end); of equals, what lies deeper: a chain is read from its
root, so what is left of it stays readable. Which is coldest is told by a sample that walks over all chunks: one round
over it pays for a sixteenth of it. What is left out is remembered, up to a bound, and comes in when there is room or
when `rank` says that it is hot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from plumage.directory.schema import BUCKET_SHIFT, BUCKETS, DIGEST_MASK, MAX_TOKENS, RECORD, Change, Op, pack_bucket

__all__ = ["HeldChunks", "capacity_within"]

SAMPLE = 1024  # chunks that are looked at to find the coldest 64 of them
RANKED = 2048  # chunks that are weighed at a time where many are: ten milliseconds if each goes for another
LEFT_OUT = 65_536  # chunks left out that are remembered: about 200 bytes each
ENTRY_BYTES = 40  # of a server's memory for one chunk of one replica, log and all, at most; it measures half of that
SERVER_BYTES = 8 << 20  # for itself, work in flight, learned tables
MOST = 1_000_000  # chunks of one replica: what an agent's and a router's memory allow

_ADD, _MOVE, _REMOVE = int(Op.ADD), int(Op.MOVE), int(Op.REMOVE)


def capacity_within(memory: int, replicas: int) -> int:
    """Chunks that each of `replicas` may hold in a server of `memory` bytes; a quarter is left to hotness and peaks."""
    return max(1, min(MOST, (memory - SERVER_BYTES) * 3 // 4 // ENTRY_BYTES // max(1, replicas)))


class HeldChunks:
    """The chunks of one replica with tier and tokens. `capacity`: chunks at most; `refused` and `displaced` count what
    was left out for it: a router then believes a little less than is true, which costs a hit and never an answer."""

    def __init__(self, capacity: int = MOST) -> None:
        self.capacity = capacity
        self.refused = 0
        self.displaced = 0
        self.count = 0
        self.digest = 0
        self._buckets: list[dict[int, int]] = [{} for _ in range(BUCKETS)]  # chunk -> tier << 24 | tokens
        self._uses: Mapping[int, int] = {}
        self._left_out: OrderedDict[int, int] = OrderedDict()
        self._coldest: list[tuple[int, int, int]] = []  # of the last sample, coldest last: (uses, -tokens, chunk)
        self._hand = (0, 0)  # where the next sample begins: bucket, place in it
        self._records = bytearray()

    @property
    def full(self) -> bool:
        return self.count >= self.capacity

    def record(self, changes: Iterable[Change]) -> bytes:
        """Take the changes over; the packed records of those that changed something, in their order."""
        records = self._records = bytearray()
        for chunk, tier, tokens in changes:
            bucket = self._buckets[chunk >> BUCKET_SHIFT]
            old, word = bucket.get(chunk), tier << 24 | min(tokens, MAX_TOKENS)
            if tier:
                op = self._hold(bucket, chunk, old, word)
            elif old is None:
                op = None
                if self._left_out:
                    self._left_out.pop(chunk, None)
            else:
                op, word = self._drop(bucket, chunk), 0
            if op is not None:
                records += RECORD.pack(chunk, op << 28 | word)
        if self._left_out:
            self._let_in()
        return bytes(records)

    def rank(self, uses: Mapping[int, int]) -> Iterator[bytes]:
        """How often chunks were used, from now on, hottest first. Yields the records of those that come in for it, for
        others that go, of `RANKED` chunks at a time; the held_chunks may change in between."""
        self._uses = uses
        self._coldest = []
        chunks = iter(uses)
        while some := list(islice(chunks, RANKED)):
            yield self._let_hot_in(some)

    def resize(self, capacity: int) -> Iterator[bytes]:
        """So many chunks at most from now on. Yields the records of those that go, coldest first, or that come in,
        `RANKED` of them at a time; the held_chunks may change in between."""
        while self.capacity < capacity:
            step = max(self.capacity, self.count) + RANKED if self._left_out else capacity
            self.capacity = min(capacity, step)
            yield self.record(())
        self.capacity = capacity
        while self.count > capacity:
            yield self._shed()

    def _shed(self) -> bytes:
        records = self._records = bytearray()
        for _ in range(min(RANKED, self.count - self.capacity)):
            if self._coldest_held() is not None:
                self._let_go()
        return bytes(records)

    def _let_hot_in(self, chunks: Iterable[int]) -> bytes:
        hot = [(chunk, self._left_out[chunk]) for chunk in chunks if chunk in self._left_out]
        hot.sort(key=lambda held: _heat(self._uses, *held), reverse=True)
        return self.record([Change(chunk, word >> 24, word & MAX_TOKENS) for chunk, word in hot]) if hot else b""

    def _hold(self, bucket: dict[int, int], chunk: int, old: int | None, word: int) -> int | None:
        if old == word:
            return None
        if old is None:
            if self.count >= self.capacity and not self._displace(chunk, word):
                self.refused += 1
                self._leave_out(chunk, word)
                return None
            if self._left_out:
                self._left_out.pop(chunk, None)
            self.count += 1
            self.digest = self.digest + chunk & DIGEST_MASK
        bucket[chunk] = word
        return _ADD if old is None else _MOVE

    def _drop(self, bucket: dict[int, int], chunk: int) -> int:
        del bucket[chunk]
        self.count -= 1
        self.digest = self.digest - chunk & DIGEST_MASK
        return _REMOVE

    def clear(self) -> None:
        """The engine's cache was emptied as a whole."""
        self.count = self.digest = 0
        self._buckets = [{} for _ in range(BUCKETS)]
        self._left_out.clear()
        self._coldest = []

    def bucket(self, number: int, seq: int) -> bytes:
        """One bucket of the snapshot, valid after log entry `seq`."""
        held = self._buckets[number]
        return pack_bucket(seq, map(RECORD.pack, held.keys(), held.values()))

    # At capacity

    def _displace(self, chunk: int, word: int) -> bool:
        """Take the coldest chunk out, if it is colder than the one that wants in."""
        victim = self._coldest_held()
        if victim is None or _heat(self._uses, chunk, word) <= victim[:2]:
            return False
        self._let_go()
        return True

    def _let_go(self) -> None:
        """The coldest, which was just found."""
        _, _, chunk = self._coldest.pop()
        bucket = self._buckets[chunk >> BUCKET_SHIFT]
        self._leave_out(chunk, bucket[chunk])
        self._records += RECORD.pack(chunk, self._drop(bucket, chunk) << 28)
        self.displaced += 1

    def _coldest_held(self) -> tuple[int, int, int] | None:
        """The coldest of the sample that is still as it was seen; of a new sample where that one is used up."""
        for sampled in (False, True):
            if sampled:
                self._look()
            while self._coldest:
                uses, depth, chunk = self._coldest[-1]
                word = self._buckets[chunk >> BUCKET_SHIFT].get(chunk)
                if word is not None and _heat(self._uses, chunk, word) == (uses, depth):
                    return self._coldest[-1]
                self._coldest.pop()
        return None

    def _look(self) -> None:
        """Walk on over the chunks held, and keep the coldest sixteenth of those passed."""
        seen: list[tuple[int, int, int]] = []
        bucket, place = self._hand
        for _ in range(BUCKETS + 1):
            held = self._buckets[bucket]
            part = list(islice(held.items(), place, place + SAMPLE - len(seen)))
            seen += [(*_heat(self._uses, chunk, word), chunk) for chunk, word in part]
            place += len(part)
            if len(seen) >= min(SAMPLE, self.count):
                break
            bucket, place = (bucket + 1) % BUCKETS, 0
        self._hand = bucket, place
        seen.sort()
        self._coldest = seen[: -(-len(seen) // 16)][::-1]

    def _leave_out(self, chunk: int, word: int) -> None:
        self._left_out[chunk] = word
        self._left_out.move_to_end(chunk)
        if len(self._left_out) > LEFT_OUT:
            self._left_out.popitem(last=False)

    def _let_in(self) -> None:
        """There is room again: those left out longest come first, which of a chain are the upper ones."""
        while self._left_out and self.count < self.capacity:
            chunk, word = self._left_out.popitem(last=False)
            op = self._hold(self._buckets[chunk >> BUCKET_SHIFT], chunk, None, word)
            if op is not None:
                self._records += RECORD.pack(chunk, op << 28 | word)


def _heat(uses: Mapping[int, int], chunk: int, word: int) -> tuple[int, int]:
    """Hotter is more."""
    return uses.get(chunk, 0), -(word & MAX_TOKENS)
