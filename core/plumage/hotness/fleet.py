"""Pool-wide hotness: deltas of uses, their aged sum, and the hottest prefixes.

Each sender counts the uses of prefix nodes and sends them as a *delta*, about once a second. A holder of the pool-wide
view adds deltas in any order and ages the view by the requests of the whole pool. So a busy and an idle replica share
one clock. Frequency and clock are those of HotPrefix §3.2, for the pool in place of one engine.

Keys are 64-bit hashes of prefixes (the directory's byte chunks): no text and no token ids can be had from a delta or a
view. Both are bounded: the coldest entries are dropped.
"""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass, field

from plumage import defaults
from plumage.errors import ConfigurationError
from plumage.hotness.node_uses import NodeUses

__all__ = ["DeltaCounter", "FleetHotness", "HotNode", "HotnessDelta"]

_VERSION = 1
_HEAD = struct.Struct("<BIII")
_ENTRY = struct.Struct("<QII")
_NODE = struct.Struct("<QIIQ")
_VIEW = struct.Struct("<BIQI")
_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class HotnessDelta:
    """The uses at one sender since its last delta.

    requests: served since then. uses: key → (uses since then, tokens from the root to its end).
    left_out: uses of nodes beyond the capacity.
    """

    requests: int
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    left_out: int = 0

    def to_bytes(self) -> bytes:
        """Pack the delta, 16 bytes per node."""
        head = _HEAD.pack(_VERSION, min(self.requests, _U32), min(self.left_out, _U32), len(self.uses))
        return head + b"".join(_ENTRY.pack(key, *pair) for key, pair in self.uses.items())

    @classmethod
    def from_bytes(cls, data: bytes) -> HotnessDelta:
        """Unpack a delta. ConfigurationError for another version or an incomplete message."""
        if len(data) < _HEAD.size or data[0] != _VERSION:
            raise ConfigurationError(f"hotness delta: expected version {_VERSION}, got {data[:1].hex() or 'nothing'}")
        _, requests, left_out, count = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise ConfigurationError(f"hotness delta: {count} nodes announced, {len(data)} bytes received")
        uses = {key: (uses, tokens) for key, uses, tokens in _ENTRY.iter_unpack(data[_HEAD.size :])}
        return cls(requests, uses, left_out)


class DeltaCounter:
    """Collects one sender's next delta. capacity: nodes. Uses of further nodes are only counted."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._requests = 0
        self._left_out = 0
        self._uses: dict[int, tuple[int, int]] = {}

    def request(self, number: int = 1) -> None:
        """Count `number` served requests."""
        self._requests += number

    def use(self, key: int, tokens: int, uses: int = 1) -> None:
        """Count uses of the prefix that ends at `key`, `tokens` tokens from the root."""
        known = self._uses.get(key)
        if known is None and len(self._uses) >= self._capacity:
            self._left_out += uses
            return
        counted = uses if known is None else known[0] + uses
        self._uses[key] = (min(counted, _U32), min(tokens, _U32))

    def take(self) -> HotnessDelta:
        """Return the delta, and start to count the next one."""
        delta = HotnessDelta(self._requests, self._uses, self._left_out)
        self._requests = self._left_out = 0
        self._uses = {}
        return delta


@dataclass(frozen=True, slots=True)
class HotNode:
    """An entry of the hottest list."""

    key: int
    tokens: int
    uses: NodeUses


class FleetHotness:
    """The pool-wide view. capacity: nodes kept. max_age, aging_interval: the clock, in the pool's requests.

    An entry keeps the number of the pool's requests at its last use, and its clock is computed from that. So ageing
    costs nothing, and all holders of the view compute the same clock. Frequencies are added, and the later last use
    counts: the result does not depend on the order of deltas.
    """

    def __init__(
        self, capacity: int = 65_536, *, max_age: int = 255, aging_interval: int = defaults.AGING_INTERVAL
    ) -> None:
        if capacity < 1 or max_age < 1 or aging_interval < 1:
            raise ConfigurationError("capacity, max_age and aging_interval must be at least 1")
        self.requests = 0
        self._capacity = capacity
        self._max_age = max_age
        self._interval = aging_interval
        self._nodes: dict[int, tuple[int, int, int]] = {}  # key → uses, tokens, requests at the last use

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, delta: HotnessDelta) -> None:
        """Merge one agent's delta."""
        self.requests += delta.requests
        nodes, now = self._nodes, self.requests
        for key, (uses, tokens) in delta.uses.items():
            known = nodes.get(key)
            total = uses if known is None else known[0] + uses
            nodes[key] = (min(total, _U32), tokens, now)
        self._bound()

    def merge(self, other: FleetHotness) -> None:
        """Add another view, which was made of other deltas."""
        self.requests += other.requests
        for key, (uses, tokens, last) in other._nodes.items():
            known = self._nodes.get(key, (0, 0, 0))
            self._nodes[key] = (min(known[0] + uses, _U32), tokens, max(known[2], last))
        self._bound()

    def get(self, key: int) -> NodeUses | None:
        """The uses of the node, or None. The depth is not known here and is 1."""
        node = self._nodes.get(key)
        return None if node is None else self._uses_of(node)

    def aged(self, key: int) -> int:
        """The uses of the node × its clock ÷ max_age, rounded up: sums over nodes are valid. 0 for an unknown node."""
        uses = self.get(key)
        return 0 if uses is None else -(-uses.frequency * uses.clock // self._max_age)

    def hottest(self, count: int) -> list[HotNode]:
        """The `count` hottest nodes, hottest first. Of equals the longer prefix is first."""
        hottest = heapq.nlargest(count, self._ranked())
        return [HotNode(key, tokens, self._uses_of(self._nodes[key])) for _, tokens, key in hottest]

    def to_bytes(self) -> bytes:
        """Pack the view, 24 bytes per node."""
        head = _VIEW.pack(_VERSION, self._interval, self.requests, len(self._nodes))
        return head + b"".join(_NODE.pack(key, *node) for key, node in self._nodes.items())

    def load(self, data: bytes) -> None:
        """Replace the view by a packed one. ConfigurationError for another version or an incomplete message."""
        if len(data) < _VIEW.size or data[0] != _VERSION:
            raise ConfigurationError(f"hotness view: expected version {_VERSION}, got {data[:1].hex() or 'nothing'}")
        _, interval, requests, count = _VIEW.unpack_from(data)
        if not interval:
            raise ConfigurationError("hotness view: an ageing interval of 0 requests")
        if len(data) != _VIEW.size + count * _NODE.size:
            raise ConfigurationError(f"hotness view: {count} nodes announced, {len(data)} bytes received")
        self._interval, self.requests = interval, requests
        nodes = _NODE.iter_unpack(data[_VIEW.size :])
        self._nodes = {key: (uses, tokens, min(last, requests)) for key, uses, tokens, last in nodes}
        self._bound()

    def _uses_of(self, node: tuple[int, int, int]) -> NodeUses:
        age = (self.requests - node[2]) // self._interval
        return NodeUses(node[0], max(0, self._max_age - age))

    def _ranked(self) -> list[tuple[int, int, int]]:
        """(hotness, tokens, key) of each node. Tuples, because there may be tens of thousands."""
        requests, interval, most = self.requests, self._interval, self._max_age
        return [
            (uses * max(0, most - (requests - last) // interval), tokens, key)
            for key, (uses, tokens, last) in self._nodes.items()
        ]

    def _bound(self) -> None:
        """Drop the coldest nodes above the capacity, and an eighth more, so that this is rare."""
        if len(self._nodes) <= self._capacity:
            return
        kept = max(1, self._capacity - self._capacity // 8)
        for _, _, key in sorted(self._ranked())[: len(self._nodes) - kept]:
            del self._nodes[key]
