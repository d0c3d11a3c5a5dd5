"""What one replica holds, as its agent's writer keeps it: the source of snapshots, counts and digests.

Contract: `record(changes)` turns the agent's statements into packed records of what really changed: saying twice that a
chunk is held, or dropping what was not held, yields nothing, so readers can count by the records alone. Pure.

The digest is the sum of the chunks held, modulo 2⁶⁴: chunks are uniform hashes, so the sum needs no mixing, does not
depend on the order, and follows each change in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable

from plumage.directory.schema import BUCKET_SHIFT, BUCKETS, MAX_TOKENS, RECORD, Change, Op, pack_bucket

__all__ = ["DIGEST_MASK", "Ledger"]

DIGEST_MASK = (1 << 64) - 1


class Ledger:
    """The chunks of one replica with tier and tokens. `capacity`: what comes above it is not recorded and counted in
    `refused`: a router then believes a little less than is true, which costs a hit and never an answer."""

    def __init__(self, capacity: int = 1_000_000) -> None:
        self.capacity = capacity
        self.refused = 0
        self.count = 0
        self.digest = 0
        self._buckets: list[dict[int, int]] = [{} for _ in range(BUCKETS)]  # chunk -> tier << 24 | tokens

    def record(self, changes: Iterable[Change]) -> bytes:
        """Take the changes over; the packed records of those that changed something, in their order."""
        records = bytearray()
        for chunk, tier, tokens in changes:
            bucket = self._buckets[chunk >> BUCKET_SHIFT]
            old, word = bucket.get(chunk), tier << 24 | min(tokens, MAX_TOKENS)
            if tier:
                op = self._hold(bucket, chunk, old, word)
            elif old is None:
                op = None
            else:
                op, word = self._drop(bucket, chunk), 0
            if op is not None:
                records += RECORD.pack(chunk, op << 28 | word)
        return bytes(records)

    def _hold(self, bucket: dict[int, int], chunk: int, old: int | None, word: int) -> int | None:
        if old == word:
            return None
        if old is None:
            if self.count >= self.capacity:
                self.refused += 1
                return None
            self.count += 1
            self.digest = self.digest + chunk & DIGEST_MASK
        bucket[chunk] = word
        return Op.ADD if old is None else Op.MOVE

    def _drop(self, bucket: dict[int, int], chunk: int) -> int:
        del bucket[chunk]
        self.count -= 1
        self.digest = self.digest - chunk & DIGEST_MASK
        return Op.REMOVE

    def clear(self) -> None:
        """The engine's cache was emptied as a whole."""
        self.count = self.digest = 0
        self._buckets = [{} for _ in range(BUCKETS)]

    def bucket(self, number: int, seq: int) -> bytes:
        """One bucket of the snapshot, valid after log entry `seq`."""
        held = self._buckets[number]
        return pack_bucket(seq, map(RECORD.pack, held.keys(), held.values()))
