"""A bounded memory of the blocks that an engine has computed.

A table of buckets with eight fingerprints of 32 bits, 4 bytes a block. A full bucket drops the one that was computed
longest ago.

- A block that was never computed counts as seen with a probability of at most 8 / 2^32.
- A block is forgotten when eight others have come into its bucket since it was last computed. After `m` other blocks,
  of a table with `n` places, the probability of that is P(Poisson(8·m/n) ≥ 8): 0.1 % at m = n/4, 5 % at n/2, 55 % at n.

The cuckoo filter of `plumage.hotness` also counts uses. When it is full, each new block moves up to 64 others, and
a scheduler's step has no time for that (decision 0295).
"""

from __future__ import annotations

from array import array

from plumage.errors import ConfigurationError

__all__ = ["WAYS", "SeenBlocks"]

WAYS = 8
_FINGERPRINT = (1 << 32) - 1


class SeenBlocks:
    """capacity: blocks, rounded up to eight times a power of two. ConfigurationError below one.

    A block's name has 64 well mixed bits, like a chained hash. The low bits choose the bucket, the high ones are the
    fingerprint.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigurationError(f"a memory of blocks needs a capacity of at least one block, got {capacity}")
        buckets = 1 << max(0, -(-capacity // WAYS) - 1).bit_length()
        self._mask = buckets - 1
        self._table = array("I", bytes(4 * WAYS * buckets))

    @property
    def places(self) -> int:
        """The number of blocks that fit."""
        return len(self._table)

    @property
    def bytes(self) -> int:
        """Memory of the table."""
        return self._table.itemsize * len(self._table)

    def __contains__(self, name: int) -> bool:
        base = (name & self._mask) * WAYS
        return (name >> 32 & _FINGERPRINT or 1) in self._table[base : base + WAYS]

    def add(self, name: int) -> bool:
        """Remember the block as the newest of its bucket. True if it was there."""
        fingerprint, base = name >> 32 & _FINGERPRINT or 1, (name & self._mask) * WAYS
        ways = self._table[base : base + WAYS]
        known = fingerprint in ways
        if known:
            ways.remove(fingerprint)
        else:
            ways.pop()
        ways.insert(0, fingerprint)
        self._table[base : base + WAYS] = ways
        return known
