"""The hotness-aware cuckoo filter (HotPrefix §3.2): frequency, clock and depth of prefix nodes in a few bytes each.

A hash table of buckets with four entries. An entry holds a fingerprint instead of the key, and may be in either of two
buckets, so that the table fills to about 95 %. Two keys with one fingerprint in one bucket count as the same node. The
rate of these false positives is about 8 / 2^fingerprint_bits in a full table.

Errata and what the paper leaves open:
- Eq. 3 and 4 as printed give b2 = hash(f) xor hash(f) = 0 for every node. The cuckoo filter itself has
  b1 = hash(x), b2 = b1 xor hash(f), and we use that.
- The paper has eight bits for each field; here each width is an option. The paper does not define a full counter.
  Here it stays full, and no other counter changes. Our default, 16 bits, keeps the order up to 65,535 uses (0205).
- A full filter drops the coldest entry that it can reach. It does not fail ("may be shuffled to host memory").
- A key may also be an engine's name of a block: a hash of 8 bytes or more, of which the first 8 count.
- Frequency outlives the eviction of the node's blocks. Otherwise a node that is evicted early would never reach the
  threshold of admission.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from plumage import defaults
from plumage.errors import ConfigurationError
from plumage.hotness.node_uses import NodeUses
from plumage.randomness import Randomness

__all__ = ["SLOTS", "CuckooFilter", "mix64"]

SLOTS = 4
Key = int | bytes
_MASK = (1 << 64) - 1
_LIFE: Final = 2  # turnovers until a clock is 0 (0315)
_STEPS: Final = 32  # in which it gets there, because each one visits the whole table
_TYPECODES = ((8, "B"), (16, "H"), (32, "I"))


def mix64(value: int) -> int:
    """splitmix64's finalizer: spreads keys that are not well mixed themselves."""
    value = ((value & _MASK) ^ ((value & _MASK) >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class CuckooFilter:
    """The filter. ConfigurationError for an option out of range.

    capacity: entries, rounded up to four times a power of two. Widths are in bits, 1 to 32.
    aging_interval: requests between two ageings; `tick` counts them. None: a clock lasts for two turnovers. turnover:
    the blocks that fill the memories in question. rng: chooses the entry that a full bucket moves.
    """

    def __init__(
        self,
        capacity: int,
        rng: Randomness,
        *,
        fingerprint_bits: int = defaults.FILTER_BITS,
        clock_bits: int = defaults.FILTER_BITS,
        frequency_bits: int = defaults.FREQUENCY_BITS,
        depth_bits: int = defaults.FILTER_BITS,
        aging_interval: int | None = defaults.AGING_INTERVAL,
        turnover: int | None = None,
        max_moves: int = 64,
    ) -> None:
        least = turnover if aging_interval is None else aging_interval
        if least is None or capacity < 1 or least < 1 or max_moves < 1:
            raise ConfigurationError(
                "capacity, aging_interval and max_moves must be at least 1; without aging_interval, so must turnover"
            )
        buckets = 1 << max(0, -(-capacity // SLOTS) - 1).bit_length()
        self.max_age = (1 << clock_bits) - 1
        self.max_frequency = (1 << frequency_bits) - 1
        self.dropped = 0
        self._max_depth = (1 << depth_bits) - 1
        self._fingerprint_mask = (1 << fingerprint_bits) - 1
        self._bucket_mask = buckets - 1
        self._by_blocks = aging_interval is None
        self._interval, self._step = _ageing(_LIFE * least, self.max_age) if self._by_blocks else (least, 1)
        self._counted = 0
        self._max_moves = max_moves
        self._rng = rng
        self._used = 0
        size = buckets * SLOTS
        self._fingerprints = _field(size, fingerprint_bits, "fingerprint_bits")
        self._clocks = _field(size, clock_bits, "clock_bits")
        self._frequencies = _field(size, frequency_bits, "frequency_bits")
        self._depths = _field(size, depth_bits, "depth_bits")

    def __len__(self) -> int:
        return self._used

    @property
    def slots(self) -> int:
        """The number of entries that fit."""
        return len(self._fingerprints)

    @property
    def bytes(self) -> int:
        """Memory of the table, in bytes."""
        fields = (self._fingerprints, self._clocks, self._frequencies, self._depths)
        return sum(field.itemsize * len(field) for field in fields)

    def get(self, key: Key) -> NodeUses | None:
        """The node's uses, or None. At the false-positive rate they are those of another node."""
        slot = self._find(_mixed(key))
        return None if slot < 0 else self._uses_of(slot)

    def touch(self, key: Key, depth: int = 1) -> NodeUses:
        """Count one use of the node: frequency + 1, at most max_frequency, and the clock is max_age again.

        A new node starts with frequency 1. No other node changes, but a full filter may drop one."""
        return self._uses_of(self._touch(_mixed(key), min(depth, self._max_depth)))

    def touch_chain(self, keys: Iterable[Key], depth: int = 1) -> None:
        """Count one use of each node of a chain; the first one has this depth."""
        touch, last = self._touch, self._max_depth
        for key in keys:
            touch(_mixed(key), depth if depth < last else last)
            depth += 1

    def _touch(self, mixed: int, depth: int) -> int:
        """Count one use of the node with this depth. Returns its slot."""
        slot, frequencies = self._find(mixed), self._frequencies
        if slot < 0:
            slot = self._insert(mixed)
            frequencies[slot] = 0
        if frequencies[slot] < self.max_frequency:
            frequencies[slot] += 1
        self._clocks[slot] = self.max_age
        self._depths[slot] = depth
        return slot

    def put(self, key: Key, uses: NodeUses) -> None:
        """Set the node's uses: after a split or a cut a node keeps them under its new key."""
        mixed = _mixed(key)
        slot = self._find(mixed)
        if slot < 0:
            slot = self._insert(mixed)
        self._frequencies[slot] = min(uses.frequency, self.max_frequency)
        self._clocks[slot] = min(uses.clock, self.max_age)
        self._depths[slot] = min(uses.depth, self._max_depth)

    def tick(self, requests: int = 1, blocks: int = 0) -> bool:
        """Count requests, and the blocks that they use. True if the filter aged."""
        self._counted += blocks if self._by_blocks else requests
        if self._counted < self._interval:
            return False
        times, self._counted = divmod(self._counted, self._interval)
        self.age(times * self._step)
        return True

    def age(self, by: int = 1) -> None:
        """Decrease every clock, never below zero."""
        if self._clocks.typecode == "B":  # at the speed of a copy
            less = bytes([*bytes(min(by, 256)), *range(256 - by)])
            self._clocks = array("B", self._clocks.tobytes().translate(less))
        else:
            self._clocks = array(self._clocks.typecode, [max(0, clock - by) for clock in self._clocks])

    def _other(self, bucket: int, fingerprint: int) -> int:
        return bucket ^ (mix64(fingerprint) & self._bucket_mask)

    def _find(self, mixed: int) -> int:
        """The node's slot, or -1. The second bucket is computed only if the first lacks the node."""
        fingerprints, fingerprint = self._fingerprints, (mixed >> 32) & self._fingerprint_mask or 1
        first = mixed & self._bucket_mask
        base = first * SLOTS
        four = fingerprints[base : base + SLOTS]
        if fingerprint in four:
            return base + four.index(fingerprint)
        base = self._other(first, fingerprint) * SLOTS
        four = fingerprints[base : base + SLOTS]
        return base + four.index(fingerprint) if fingerprint in four else -1

    def _free(self, bucket: int) -> int:
        base = bucket * SLOTS
        for slot in range(base, base + SLOTS):
            if not self._fingerprints[slot]:
                return slot
        return -1

    def _insert(self, mixed: int) -> int:
        fingerprint, first = (mixed >> 32) & self._fingerprint_mask or 1, mixed & self._bucket_mask
        second = self._other(first, fingerprint)
        slot = self._free(first)
        if slot < 0:
            slot = self._free(second)
        if slot < 0:
            slot = self._make_room(first if self._rng.random() < 0.5 else second)
        self._used += not self._fingerprints[slot]
        self._fingerprints[slot] = fingerprint
        return slot

    def _make_room(self, bucket: int) -> int:
        """Free a slot of `bucket`: find a chain of moves to a free slot, and move entries from its end.

        If the chain gets too long, it ends at its coldest entry, which is dropped.
        """
        chain: list[int] = []
        while len(chain) < self._max_moves:
            slot = self._pick(bucket, chain)
            if slot < 0:
                break
            chain.append(slot)
            bucket = self._other(bucket, self._fingerprints[slot])
            free = self._free(bucket)
            if free >= 0:
                return self._shift(chain, free)
        coldest = min(range(len(chain)), key=lambda place: self._uses_of(chain[place]).hotness)
        self.dropped += 1
        self._fingerprints[chain[coldest]] = 0
        self._used -= 1
        return self._shift(chain[:coldest], chain[coldest])

    def _pick(self, bucket: int, chain: list[int]) -> int:
        """A random slot of `bucket` that is not in the chain; -1 if all are."""
        start = int(self._rng.random() * SLOTS)
        for step in range(SLOTS):
            slot = bucket * SLOTS + (start + step) % SLOTS
            if slot not in chain:
                return slot
        return -1

    def _shift(self, chain: list[int], free: int) -> int:
        for slot in reversed(chain):
            for field in (self._fingerprints, self._clocks, self._frequencies, self._depths):
                field[free] = field[slot]
            self._fingerprints[slot] = 0
            free = slot
        return free

    def _uses_of(self, slot: int) -> NodeUses:
        return NodeUses(self._frequencies[slot], self._clocks[slot], self._depths[slot])


def _ageing(life: int, max_age: int) -> tuple[int, int]:
    """After how many blocks clocks decrease, and by what, so that they are 0 after `life` blocks."""
    interval = max(1, life // min(_STEPS, max_age))
    return interval, max(1, -(-max_age * interval // life))


def _mixed(key: Key) -> int:
    """64 well mixed bits: the low ones choose the first bucket, the high ones are the fingerprint."""
    return mix64(key if isinstance(key, int) else int.from_bytes(key[:8], "big"))


def _field(size: int, bits: int, name: str) -> array[int]:
    for width, typecode in _TYPECODES:
        if 1 <= bits <= width:
            return array(typecode, bytes(size * width // 8))
    raise ConfigurationError(f"{name} must be 1 to 32 bits, got {bits}")
