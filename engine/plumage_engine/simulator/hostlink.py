"""The host tier of a simulated engine: what goes down, what comes back, and the bytes that cross PCIe for it.

Three ways over the link (HotPrefix §3.3, §3.4): an evicted run that is worth it is copied down; a request whose
prefix goes on in host memory has those blocks copied up at its admission; and hot prefixes are promoted ahead of their
next request, in steps that only decode, in place of the coldest leaves. Plans are `plumage.tiering`'s.

By default both rank by hotness. The alternatives to compare with (HotPrefix §5.3.1, §5.3.4) rank by what `_RANKS` says:
admission of everything that was used often ("Frequency") or of everything ("All"), promotion by one property alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from plumage.blocks.events import EventSink
from plumage.blocks.pool import BlockPool
from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction import EvictionPolicy
from plumage.hotness import Heat
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.record import NodeRecord, Recorded
from plumage.tiering import HostTier, PromotionBudget, PromotionTurn

if TYPE_CHECKING:
    from random import Random

__all__ = ["HostLink"]

_DEPTHS: Final = 1 << 16
_RANKS: Final[Mapping[str, Callable[[Heat], Heat]]] = {
    "Hotness": lambda heat: heat,
    "Frequency": lambda heat: Heat(heat.frequency, 1, heat.depth),
    "Recency": lambda heat: Heat(1, heat.clock, heat.depth),
    "Depth": lambda heat: Heat(1, max(1, _DEPTHS - heat.depth), heat.depth),
}
_EVERYTHING: Final = Heat(1 << 40, 1)


class _Ranked:
    """Heat as the plan at hand ranks it. `first`: the node that outranks all others, if any."""

    def __init__(self, record: NodeRecord) -> None:
        self.rank = _RANKS["Hotness"]
        self.first: int | None = None
        self._record = record

    def get(self, key: int) -> Heat | None:
        if key == self.first:
            return _EVERYTHING
        heat = self._record.get(key)
        return None if heat is None else self.rank(heat)


class HostLink:
    """Between one engine's pool and its host tier. `take_bytes` says what the coming step has to copy."""

    def __init__(
        self,
        capacity: int,
        *,
        block_size: int,
        block_bytes: int,
        device_blocks: int,
        rng: Random,
        sink: EventSink | None = None,
        min_frequency: int = 10,
        admission: str = "Hotness",
        promotion: str = "Hotness",
        promotion_tokens: int = 4096,
    ) -> None:
        if admission not in ("Hotness", "Frequency", "All") or promotion not in (*_RANKS, "Off"):
            raise ConfigurationError(f"no host tier with admission {admission!r} and promotion {promotion!r}")
        # Frequencies must outlive eviction, so the filter holds more nodes than both tiers; 16 bits, because with 8 a
        # cold prefix is taken for a hot one in every thirtieth case.
        table = CuckooFilter(2 * (capacity + device_blocks), rng, fingerprint_bits=16)
        self._record = NodeRecord(table)
        self._ranked = _Ranked(self._record)
        least = 0 if admission == "All" else min_frequency
        self.tier = HostTier(capacity, self._ranked, block_tokens=block_size, min_frequency=least, sink=sink)
        self._turn = None if promotion == "Off" else PromotionTurn()
        self._admission = admission
        self._promotion = promotion
        self._promotion_tokens = promotion_tokens
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._copied = 0

    def recorded(self, policy: EvictionPolicy) -> EvictionPolicy:
        """The device's eviction policy, with a hotness record kept beside it."""
        return Recorded(policy, self._record)

    def evicted(self, run: Run, blocks: Sequence[int]) -> None:
        """The pool's eviction hook."""
        self._ranked.rank = _RANKS["Frequency" if self._admission == "Frequency" else "Hotness"]
        self._ranked.first = run.hashes[-1] if self._admission == "All" else None
        self._copied += self.tier.offer(run, blocks)
        self._ranked.first = None

    def match(self, hashes: Sequence[int], start: int) -> int:
        """Blocks that host memory holds of the chain from index `start` on."""
        return self.tier.match(hashes, start)

    def load(self, hashes: Sequence[int]) -> None:
        """These blocks are copied up for a request."""
        self._copied += self.tier.load(hashes)

    def promote(self, pool: BlockPool, *, prefill_tokens: int, reserve: int, now: float) -> None:
        """At the end of scheduling a step: bring up what its decodes can hide, if it is time to."""
        if self._turn is None or not self._turn.step(prefill_tokens=prefill_tokens):
            return
        self._ranked.rank = _RANKS[self._promotion]
        budget = PromotionBudget(self._promotion_tokens, pool.free * self._block_size, reserve * self._block_size)
        for promotion in self.tier.plan(pool.tree, budget):
            if all(pool.discard(victim.key) for victim in promotion.victims):
                self._bring(pool, self.tier.blocks_of(promotion.node), promotion.node.parent, now)

    def take_bytes(self) -> int:
        """Bytes to copy since the last call."""
        copied, self._copied = self._copied, 0
        return copied * self._block_bytes

    def _bring(self, pool: BlockPool, blocks: Sequence[int], parent: int | None, now: float) -> None:
        """A promotion is no use: the node's heat is what it was."""
        heat = self._record.get(blocks[-1]) if blocks else None
        if blocks and pool.bring(blocks, parent, now):
            self.load(blocks)
            if heat is not None:
                self._record.table.put(blocks[-1], heat)
